package loads

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"weir.io/weir/internal/model"
)

// Version is that of the messages' format. Messages of another version are not read.
const Version = 1

const (
	kindReport = 1
	kindNumber = 2 // a director says its number

	directorAt  = 4 + 4 + 8 // where the director's number begins
	headLength  = directorAt + 8
	fixedLength = 8 + 2 + 2 // of a report, before its loads
	macLength   = 16
	shortest    = headLength + macLength
	longest     = 1200

	loadLength  = 1 + 4 + 2 + 2 + 2 + 4 + 4 + 2 // without addresses
	longestLoad = loadLength + 16 + 16
	// loadsAtOnce fit into a message whatever their addresses.
	loadsAtOnce = (longest - shortest - fixedLength) / longestLoad

	fullPressure = math.MaxUint16
)

const (
	vip6     = 1 << 0
	backend6 = 1 << 1
)

// message is one of either kind.
type message struct {
	kind            byte
	agent, director uint64
	sequence        uint64
	interval        time.Duration
	loads           []model.Load
}

// Why bytes are not a message. A message with a right MAC and other errors is malformed: its sender
// has the key, but uses another format.
var (
	errShort     = errors.New("it is shorter than any message")
	errForeign   = errors.New("it is not a message about loads")
	errKey       = errors.New("it is by a key that is not known here")
	errForged    = errors.New("its MAC is not right")
	errMalformed = errors.New("it is malformed")
)

// encode writes a message with no more loads than loadsAtOnce.
func (m *message) encode(k *key) []byte {
	b := make([]byte, 0, longest)
	b = append(b, 'W', 'L', Version, m.kind)
	b = append(b, k.id[:]...)
	b = binary.BigEndian.AppendUint64(b, m.agent)
	b = binary.BigEndian.AppendUint64(b, m.director)
	if m.kind == kindReport {
		b = binary.BigEndian.AppendUint64(b, m.sequence)
		b = binary.BigEndian.AppendUint16(b, uint16(min(m.interval.Milliseconds(), math.MaxUint16)))
		b = binary.BigEndian.AppendUint16(b, uint16(len(m.loads)))
		for i := range m.loads {
			b = appendLoad(b, &m.loads[i])
		}
	}
	mac := k.mac(b)
	return append(b, mac[:]...)
}

func appendLoad(b []byte, l *model.Load) []byte {
	flags, id := byte(0), &l.Service
	if id.VIP.Is6() {
		flags |= vip6
	}
	if l.Backend.Addr().Is6() {
		flags |= backend6
	}
	b = append(b, flags)
	b = binary.BigEndian.AppendUint32(b, id.Segment.Key())
	b = binary.BigEndian.AppendUint16(b, id.Port.First)
	b = binary.BigEndian.AppendUint16(b, id.Port.Last)
	b = binary.BigEndian.AppendUint16(b, l.Backend.Port())
	b = binary.BigEndian.AppendUint32(b, l.Connections)
	b = binary.BigEndian.AppendUint32(b, l.Queue)
	b = binary.BigEndian.AppendUint16(b, uint16(math.Round(min(max(l.Pressure, 0), 1)*fullPressure)))
	b = append(b, id.VIP.AsSlice()...)
	return append(b, l.Backend.Addr().AsSlice()...)
}

// decode reads a message that was made with one of the keys. Nothing after the head is read before
// the MAC is known to be right.
func decode(b []byte, keys keys) (m message, by *key, err error) {
	if len(b) < shortest {
		return m, nil, errShort
	}
	if b[0] != 'W' || b[1] != 'L' {
		return m, nil, errForeign
	}
	if by = keys.of([4]byte(b[4:])); by == nil {
		return m, nil, errKey
	}
	text, mac := b[:len(b)-macLength], b[len(b)-macLength:]
	if !by.made(text, mac) {
		return m, nil, errForged
	}
	if b[2] != Version {
		return m, nil, fmt.Errorf("%w: it is version %d of the format", errMalformed, b[2])
	}
	m = message{kind: b[3], agent: binary.BigEndian.Uint64(b[8:]), director: binary.BigEndian.Uint64(b[directorAt:])}
	rest := text[headLength:]
	switch {
	case m.kind == kindReport:
		err = m.report(rest)
	case m.kind != kindNumber:
		err = fmt.Errorf("%w: kind %d", errMalformed, m.kind)
	case len(rest) > 0:
		err = fmt.Errorf("%w: %d bytes too many", errMalformed, len(rest))
	}
	return m, by, err
}

func (m *message) report(b []byte) error {
	if len(b) < fixedLength {
		return fmt.Errorf("%w: a report of %d bytes", errMalformed, len(b))
	}
	m.sequence = binary.BigEndian.Uint64(b)
	m.interval = time.Duration(binary.BigEndian.Uint16(b[8:])) * time.Millisecond
	count := int(binary.BigEndian.Uint16(b[10:]))
	b = b[fixedLength:]
	if m.interval == 0 {
		return fmt.Errorf("%w: no time is given to the next report", errMalformed)
	}
	if count > loadsMost {
		return fmt.Errorf("%w: %d loads", errMalformed, count)
	}
	m.loads = make([]model.Load, count)
	for i := range m.loads {
		n, err := readLoad(b, &m.loads[i])
		if err != nil {
			return fmt.Errorf("%w: load %d: %w", errMalformed, i, err)
		}
		b = b[n:]
	}
	if len(b) > 0 {
		return fmt.Errorf("%w: %d bytes too many", errMalformed, len(b))
	}
	return nil
}

// loadsMost is how many could be in a message: those with short addresses are shorter.
const loadsMost = (longest - shortest - fixedLength) / (loadLength + 4 + 4)

func readLoad(b []byte, l *model.Load) (length int, err error) {
	if len(b) < loadLength {
		return 0, errors.New("it is cut off")
	}
	flags := b[0]
	vip, backend := 4, 4
	if flags&vip6 != 0 {
		vip = 16
	}
	if flags&backend6 != 0 {
		backend = 16
	}
	length = loadLength + vip + backend
	switch {
	case flags&^(vip6|backend6) != 0:
		return 0, fmt.Errorf("flags %#x", flags)
	case len(b) < length:
		return 0, errors.New("it is cut off")
	}
	segment := model.SegmentOf(binary.BigEndian.Uint32(b[1:]))
	vipAddress, _ := netip.AddrFromSlice(b[loadLength : loadLength+vip])
	address, _ := netip.AddrFromSlice(b[loadLength+vip : length])
	*l = model.Load{
		Target: model.Target{
			Service: model.ServiceID{
				Segment: segment, VIP: vipAddress, Protocol: model.TCP,
				Port: model.PortRange{First: binary.BigEndian.Uint16(b[5:]), Last: binary.BigEndian.Uint16(b[7:])},
			},
			Backend: netip.AddrPortFrom(address, binary.BigEndian.Uint16(b[9:])),
		},
		Connections: binary.BigEndian.Uint32(b[11:]),
		Queue:       binary.BigEndian.Uint32(b[15:]),
		Pressure:    float64(binary.BigEndian.Uint16(b[19:])) / fullPressure,
	}
	return length, check(l)
}

// check refuses what no agent writes.
func check(l *model.Load) error {
	s, ports := l.Service.Segment, l.Service.Port
	switch {
	case s.Kind > model.SegmentGeneve || s.Kind == model.SegmentNone && s.ID != 0:
		return fmt.Errorf("segment %#x", s.Key())
	case ports.First > ports.Last || ports.First == 0 && ports.Last != 0:
		return fmt.Errorf("ports %d to %d", ports.First, ports.Last)
	case l.Service.VIP.Is4In6() || l.Backend.Addr().Is4In6():
		return errors.New("an IPv4 address in IPv6 clothing")
	case l.Queue > l.Connections:
		return fmt.Errorf("%d of %d connections wait", l.Queue, l.Connections)
	}
	return nil
}
