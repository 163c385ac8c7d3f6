package bfd

import (
	"encoding/binary"
	"math"
	"time"
)

// Sizes of a control packet and of what its fields may hold (RFC 5880 4.1).
const (
	version     = 1
	fixedSize   = 24
	authMinimum = 2
	maxPacket   = fixedSize + math.MaxUint8 // Length is one byte; what follows the packet is ignored

	// MaxInterval is the longest interval that a packet can name.
	MaxInterval = math.MaxUint32 * time.Microsecond
)

// Bits of the second byte, below the state.
const (
	bitPoll = 1 << (5 - iota)
	bitFinal
	bitIndependent
	bitAuth
	bitDemand
	bitMultipoint
)

// Packet is a BFD control packet (RFC 5880 4.1) of version 1 that is not multipoint.
type Packet struct {
	State        State
	Diagnostic   Diagnostic
	Poll         bool
	Final        bool
	Independent  bool // of the control plane: it goes on when that is gone
	Demand       bool
	Multiplier   uint8
	Mine         uint32 // the sender's discriminator
	Yours        uint32 // the receiver's, or 0 while the sender does not know it
	DesiredTx    time.Duration
	RequiredRx   time.Duration
	RequiredEcho time.Duration
	Auth         []byte // the authentication section, type and length first; nil: none
}

// Parse reads a control packet, and returns Accepted, or the rule of RFC 5880 6.8.6 that discards
// it, as far as that can be told without the session. Auth is a part of b.
func Parse(b []byte) (p Packet, why Discard) {
	if len(b) < fixedSize {
		return Packet{}, DiscardLength
	}
	if b[0]>>5 != version {
		return Packet{}, DiscardVersion
	}
	length, minimum := int(b[3]), fixedSize
	if b[1]&bitAuth != 0 {
		minimum += authMinimum
	}
	if length < minimum || length > len(b) {
		return Packet{}, DiscardLength
	}
	p = Packet{
		State: State(b[1] >> 6), Diagnostic: Diagnostic(b[0] & 0x1f),
		Poll: b[1]&bitPoll != 0, Final: b[1]&bitFinal != 0,
		Independent: b[1]&bitIndependent != 0, Demand: b[1]&bitDemand != 0,
		Multiplier: b[2],
		Mine:       binary.BigEndian.Uint32(b[4:]), Yours: binary.BigEndian.Uint32(b[8:]),
		DesiredTx: interval(b[12:]), RequiredRx: interval(b[16:]), RequiredEcho: interval(b[20:]),
	}
	switch {
	case p.Multiplier == 0:
		return Packet{}, DiscardMultiplier
	case b[1]&bitMultipoint != 0:
		return Packet{}, DiscardMultipoint
	case p.Mine == 0:
		return Packet{}, DiscardMine
	case p.Yours == 0 && p.State != Down && p.State != AdminDown:
		return Packet{}, DiscardStateless
	}
	if b[1]&bitAuth != 0 {
		p.Auth = b[fixedSize:length:length]
		if int(p.Auth[1]) != len(p.Auth) {
			return Packet{}, DiscardLength
		}
	}
	return p, Accepted
}

// Append writes the packet behind b. An interval longer than a packet can name is
// written as the longest that it can.
func (p Packet) Append(b []byte) []byte {
	flags := uint8(p.State) << 6
	for _, f := range [...]struct {
		set bool
		bit uint8
	}{{p.Poll, bitPoll}, {p.Final, bitFinal}, {p.Independent, bitIndependent}, {p.Auth != nil, bitAuth}, {p.Demand, bitDemand}} {
		if f.set {
			flags |= f.bit
		}
	}
	b = append(b, version<<5|uint8(p.Diagnostic)&0x1f, flags, p.Multiplier, uint8(fixedSize+len(p.Auth)))
	b = binary.BigEndian.AppendUint32(b, p.Mine)
	b = binary.BigEndian.AppendUint32(b, p.Yours)
	for _, d := range [...]time.Duration{p.DesiredTx, p.RequiredRx, p.RequiredEcho} {
		b = binary.BigEndian.AppendUint32(b, microseconds(d))
	}
	return append(b, p.Auth...)
}

func interval(b []byte) time.Duration {
	return time.Duration(binary.BigEndian.Uint32(b)) * time.Microsecond
}

func microseconds(d time.Duration) uint32 {
	return uint32(min(max(d, 0), MaxInterval) / time.Microsecond)
}
