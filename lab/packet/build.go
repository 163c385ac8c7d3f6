package packet

import (
	"encoding/binary"
	"slices"
)

// Header is one layer of a packet that Build puts together.
type Header interface {
	// prepend returns the header followed by the payload. It sees its neighbors because lengths,
	// types and checksums depend on them.
	prepend(payload []byte, at place) []byte
	// etherType is what an Ethernet header or VLAN tag in front says, 0: nothing.
	etherType() uint16
	// protocol is what an IP or GUE header in front says (IANA).
	protocol() uint8
}

// place is where a header stands: outermost first.
type place struct {
	outer, inner []Header
}

// nextEtherType returns the EtherType of what follows.
func (p place) nextEtherType() uint16 {
	if len(p.inner) == 0 {
		return 0
	}
	return p.inner[0].etherType()
}

// nextProtocol returns the IP protocol of what follows.
func (p place) nextProtocol() uint8 {
	if len(p.inner) == 0 {
		return NoNextHeader
	}
	return p.inner[0].protocol()
}

// pseudo returns the sum of the pseudo header of the nearest IP header in front
// (RFC 9293, RFC 8200 section 8.1), or 0 when there is none.
func (p place) pseudo(protocol uint8, length int) uint32 {
	for i := len(p.outer) - 1; i >= 0; i-- {
		if ip, ok := p.outer[i].(interface {
			pseudo(inner []Header) uint32
		}); ok {
			return ip.pseudo(p.outer[i+1:]) + uint32(protocol) + uint32(length>>16) + uint32(length&0xffff)
		}
	}
	return 0
}

// Build returns the packet that the headers describe, outermost first. What the
// headers leave zero (lengths, types, protocols, checksums) it fills in.
func Build(headers ...Header) []byte {
	var b []byte
	for i := len(headers) - 1; i >= 0; i-- {
		b = headers[i].prepend(b, place{headers[:i], headers[i+1:]})
	}
	return b
}

// Bytes is a payload.
type Bytes []byte

func (b Bytes) prepend(payload []byte, _ place) []byte {
	return append(append([]byte(nil), b...), payload...)
}
func (Bytes) etherType() uint16 { return 0 }
func (Bytes) protocol() uint8   { return NoNextHeader }

// Text is a payload of characters.
func Text(s string) Bytes { return Bytes(s) }

// Zeros is a payload of n zero bytes.
func Zeros(n int) Bytes { return make(Bytes, n) }

// Quote is what an ICMP error carries of a packet: its IP header, with options,
// and at most n bytes after it (RFC 792 promises 8). The checksum of SCTP says nothing of the ports
// in a quote: directors leave it as it is when they change these, because a receiver rarely has all
// of the packet to compare it.
func Quote(n int, headers ...Header) Bytes {
	headers = slices.Clone(headers)
	for i, h := range headers {
		if sctp, is := h.(SCTPHeader); is {
			sctp.quoted = true
			headers[i] = sctp
		}
	}
	b := Build(headers...)
	length := 40
	if b[0]>>4 == 4 {
		length = 4 * int(b[0]&15)
	}
	return b[:min(length+n, len(b))]
}

// sum adds 16-bit words in network order, an odd last byte padded with zero.
func sum(b []byte, initial uint32) uint32 {
	for ; len(b) > 1; b = b[2:] {
		initial += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		initial += uint32(b[0]) << 8
	}
	return initial
}

// checksum folds a sum to the Internet checksum (RFC 1071).
func checksum(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}
