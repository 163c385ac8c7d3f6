package packet

import "encoding/binary"

// ICMP types and codes (RFC 792, RFC 1191) that tests use.
const (
	EchoReply           = 0
	Unreachable         = 3
	PortUnreachable     = 3 // code of Unreachable
	FragmentationNeeded = 4 // code of Unreachable
	SourceQuench        = 4
	RedirectMessage     = 5
	EchoRequest         = 8
	TimeExceeded        = 11
	ParameterProblem    = 12
)

// ICMPv6 types and codes (RFC 4443) that tests use.
const (
	Unreachable6          = 1
	PortUnreachable6      = 4 // code of Unreachable6
	PacketTooBig          = 2
	TimeExceeded6         = 3
	ParameterProblem6     = 4
	EchoRequest6          = 128
	EchoReply6            = 129
	NeighborSolicitation  = 135
	NeighborAdvertisement = 136
)

// ICMPv4Header is the first 8 bytes of an ICMP message.
type ICMPv4Header struct {
	Type, Code uint8
	Rest       uint32 // bytes 4 to 7: EchoID, or the next hop's MTU, or unused
}

// EchoID is Rest of an echo request or reply.
func EchoID(id, sequence uint16) uint32 { return uint32(id)<<16 | uint32(sequence) }

func (h ICMPv4Header) prepend(payload []byte, _ place) []byte {
	b := appendICMP(h.Type, h.Code, h.Rest, payload)
	binary.BigEndian.PutUint16(b[2:], checksum(sum(b, 0)))
	return b
}
func (ICMPv4Header) etherType() uint16 { return 0 }
func (ICMPv4Header) protocol() uint8   { return ProtocolICMP }

// ICMPv6Header is the first 8 bytes of an ICMPv6 message.
type ICMPv6Header struct {
	Type, Code uint8
	Rest       uint32 // bytes 4 to 7: EchoID, or the MTU, or unused
}

func (h ICMPv6Header) prepend(payload []byte, at place) []byte {
	b := appendICMP(h.Type, h.Code, h.Rest, payload)
	binary.BigEndian.PutUint16(b[2:], checksum(sum(b, at.pseudo(ProtocolICMPv6, len(b)))))
	return b
}
func (ICMPv6Header) etherType() uint16 { return 0 }
func (ICMPv6Header) protocol() uint8   { return ProtocolICMPv6 }

func appendICMP(kind, code uint8, rest uint32, payload []byte) []byte {
	b := make([]byte, 4, 8+len(payload))
	b[0], b[1] = kind, code
	return append(binary.BigEndian.AppendUint32(b, rest), payload...)
}
