package packet

import (
	"encoding/binary"
	"net/netip"
)

// IP protocol numbers (IANA).
const (
	HopByHop       = 0
	ProtocolICMP   = 1
	ProtocolIPv4   = 4
	ProtocolTCP    = 6
	ProtocolUDP    = 17
	ProtocolIPv6   = 41
	Routing        = 43
	Fragment       = 44
	ProtocolAH     = 51
	ProtocolICMPv6 = 58
	NoNextHeader   = 59
	DestOptions    = 60
	ProtocolSCTP   = 132
)

// DefaultTTL is the TTL and hop limit of headers that leave them zero.
const DefaultTTL = 64

// IPv4Header is an IPv4 header.
type IPv4Header struct {
	Src, Dst netip.Addr
	TTL      uint8 // 0: DefaultTTL
	TOS      uint8 // DSCP << 2 | ECN
	ID       uint16
	DF, MF   bool
	Offset   uint16 // of a fragment, in bytes
	Options  []byte // a multiple of 4
	Protocol uint8  // 0: of what follows
	Length   uint16 // total length; 0: the true one
}

func (h IPv4Header) prepend(payload []byte, at place) []byte {
	size := 20 + len(h.Options)
	b := make([]byte, size, size+len(payload))
	b[0] = 4<<4 | uint8(size/4)
	b[1] = h.TOS
	length := uint16(size + len(payload))
	if h.Length != 0 {
		length = h.Length
	}
	binary.BigEndian.PutUint16(b[2:], length)
	binary.BigEndian.PutUint16(b[4:], h.ID)
	flags := h.Offset / 8
	if h.DF {
		flags |= 1 << 14
	}
	if h.MF {
		flags |= 1 << 13
	}
	binary.BigEndian.PutUint16(b[6:], flags)
	b[8] = orDefault(h.TTL, DefaultTTL)
	b[9] = orDefault(h.Protocol, at.nextProtocol())
	src, dst := h.Src.As4(), h.Dst.As4()
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	copy(b[20:], h.Options)
	binary.BigEndian.PutUint16(b[10:], checksum(sum(b, 0)))
	return append(b, payload...)
}
func (IPv4Header) etherType() uint16 { return EtherTypeIPv4 }
func (IPv4Header) protocol() uint8   { return ProtocolIPv4 }
func (h IPv4Header) pseudo([]Header) uint32 {
	src, dst := h.Src.As4(), h.Dst.As4()
	return sum(dst[:], sum(src[:], 0))
}

// IPv6Header is an IPv6 header.
type IPv6Header struct {
	Src, Dst     netip.Addr
	HopLimit     uint8 // 0: DefaultTTL
	TrafficClass uint8 // DSCP << 2 | ECN
	FlowLabel    uint32
	Next         *uint8 // nil: of what follows
	Length       uint16 // payload length; 0: the true one
}

func (h IPv6Header) prepend(payload []byte, at place) []byte {
	b := make([]byte, 40, 40+len(payload))
	binary.BigEndian.PutUint32(b, 6<<28|uint32(h.TrafficClass)<<20|h.FlowLabel)
	length := uint16(len(payload))
	if h.Length != 0 {
		length = h.Length
	}
	binary.BigEndian.PutUint16(b[4:], length)
	b[6] = at.nextProtocol()
	if h.Next != nil {
		b[6] = *h.Next
	}
	b[7] = orDefault(h.HopLimit, DefaultTTL)
	src, dst := h.Src.As16(), h.Dst.As16()
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
	return append(b, payload...)
}
func (IPv6Header) etherType() uint16 { return EtherTypeIPv6 }
func (IPv6Header) protocol() uint8   { return ProtocolIPv6 }

// pseudo uses the final destination: while a routing header has segments left
// it is the last address in there (RFC 8200 section 8.1).
func (h IPv6Header) pseudo(inner []Header) uint32 {
	src, dst := h.Src.As16(), h.Dst.As16()
	for _, n := range inner {
		if e, ok := n.(ExtensionHeader); ok && e.Kind == Routing && len(e.Data) >= 6+16 && e.Data[1] > 0 {
			copy(dst[:], e.Data[len(e.Data)-16:])
		}
	}
	return sum(dst[:], sum(src[:], 0))
}

// ExtensionHeader is an IPv6 hop-by-hop, routing or destination options header.
type ExtensionHeader struct {
	Kind uint8  // HopByHop, Routing or DestOptions
	Data []byte // after the length; filled up with Pad1 options to a multiple of 8
	Next *uint8 // nil: of what follows
}

func (h ExtensionHeader) prepend(payload []byte, at place) []byte {
	size := (2 + len(h.Data) + 7) / 8 * 8
	b := make([]byte, size, size+len(payload))
	b[0] = at.nextProtocol()
	if h.Next != nil {
		b[0] = *h.Next
	}
	b[1] = uint8(size/8 - 1)
	copy(b[2:], h.Data)
	return append(b, payload...)
}
func (ExtensionHeader) etherType() uint16 { return 0 }
func (h ExtensionHeader) protocol() uint8 { return h.Kind }

// FragmentHeader is an IPv6 fragment header.
type FragmentHeader struct {
	Offset uint16 // in bytes
	More   bool
	ID     uint32
	Next   uint8 // 0: of what follows
}

func (h FragmentHeader) prepend(payload []byte, at place) []byte {
	b := make([]byte, 8, 8+len(payload))
	b[0] = orDefault(h.Next, at.nextProtocol())
	offset := h.Offset &^ 7
	if h.More {
		offset |= 1
	}
	binary.BigEndian.PutUint16(b[2:], offset)
	binary.BigEndian.PutUint32(b[4:], h.ID)
	return append(b, payload...)
}
func (FragmentHeader) etherType() uint16 { return 0 }
func (FragmentHeader) protocol() uint8   { return Fragment }

// AuthHeader is an IPsec authentication header (RFC 4302), which counts its
// length in words of 4 bytes, less 2, unlike every other extension header.
type AuthHeader struct {
	SPI, Sequence uint32
	ICV           []byte // a multiple of 4
}

func (h AuthHeader) prepend(payload []byte, at place) []byte {
	b := make([]byte, 12, 12+len(h.ICV)+len(payload))
	b[0] = at.nextProtocol()
	b[1] = uint8((12+len(h.ICV))/4 - 2)
	binary.BigEndian.PutUint32(b[4:], h.SPI)
	binary.BigEndian.PutUint32(b[8:], h.Sequence)
	return append(append(b, h.ICV...), payload...)
}
func (AuthHeader) etherType() uint16 { return 0 }
func (AuthHeader) protocol() uint8   { return ProtocolAH }

func orDefault(v, otherwise uint8) uint8 {
	if v != 0 {
		return v
	}
	return otherwise
}
