package packet

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// TCP flags.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// TCPHeader is a TCP header.
type TCPHeader struct {
	Src, Dst uint16
	Seq, Ack uint32
	Flags    uint8
	Window   uint16
	Urgent   uint16
	Options  []byte // a multiple of 4
}

func (h TCPHeader) prepend(payload []byte, at place) []byte {
	size := 20 + len(h.Options)
	b := make([]byte, size, size+len(payload))
	binary.BigEndian.PutUint16(b, h.Src)
	binary.BigEndian.PutUint16(b[2:], h.Dst)
	binary.BigEndian.PutUint32(b[4:], h.Seq)
	binary.BigEndian.PutUint32(b[8:], h.Ack)
	b[12] = uint8(size/4) << 4
	b[13] = h.Flags
	binary.BigEndian.PutUint16(b[14:], h.Window)
	binary.BigEndian.PutUint16(b[18:], h.Urgent)
	copy(b[20:], h.Options)
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b[16:], checksum(sum(b, at.pseudo(ProtocolTCP, len(b)))))
	return b
}
func (TCPHeader) etherType() uint16 { return 0 }
func (TCPHeader) protocol() uint8   { return ProtocolTCP }

// UDPHeader is a UDP header.
type UDPHeader struct {
	Src, Dst   uint16
	NoChecksum bool   // 0 as the checksum: IPv4, and tunnels over IPv6 (RFC 6936)
	Length     uint16 // 0: the true one
}

func (h UDPHeader) prepend(payload []byte, at place) []byte {
	b := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(b, h.Src)
	binary.BigEndian.PutUint16(b[2:], h.Dst)
	length := uint16(8 + len(payload))
	if h.Length != 0 {
		length = h.Length
	}
	binary.BigEndian.PutUint16(b[4:], length)
	b = append(b, payload...)
	if h.NoChecksum {
		return b
	}
	c := checksum(sum(b, at.pseudo(ProtocolUDP, len(b))))
	if c == 0 {
		c = 0xffff // 0 would say that there is none (RFC 768)
	}
	binary.BigEndian.PutUint16(b[6:], c)
	return b
}
func (UDPHeader) etherType() uint16 { return 0 }
func (UDPHeader) protocol() uint8   { return ProtocolUDP }

// SCTPHeader is SCTP's common header (RFC 9260, 3.1); chunks follow it.
type SCTPHeader struct {
	Src, Dst   uint16
	Tag        uint32 // 0: INIT
	NoChecksum bool   // 0 as the checksum: a device has yet to compute it
	quoted     bool   // the checksum is that of the packet without its ports
}

// castagnoli is the table of SCTP's checksum (RFC 9260, Appendix A).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (h SCTPHeader) prepend(payload []byte, _ place) []byte {
	b := make([]byte, 12, 12+len(payload))
	binary.BigEndian.PutUint16(b, h.Src)
	binary.BigEndian.PutUint16(b[2:], h.Dst)
	binary.BigEndian.PutUint32(b[4:], h.Tag)
	b = append(b, payload...)
	summed := slices.Clone(b)
	if h.quoted {
		clear(summed[:4])
	}
	if !h.NoChecksum {
		binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(summed, castagnoli))
	}
	return b
}
func (SCTPHeader) etherType() uint16 { return 0 }
func (SCTPHeader) protocol() uint8   { return ProtocolSCTP }

// GUEHeader is a variant 0 header of Generic UDP Encapsulation
// (draft-ietf-intarea-gue-09).
type GUEHeader struct {
	Control  bool
	Protocol uint8  // 0: of what follows
	Flags    uint16 // that say which extensions there are
	Private  []byte // extensions and private data, a multiple of 4
}

func (h GUEHeader) prepend(payload []byte, at place) []byte {
	b := make([]byte, 4, 4+len(h.Private)+len(payload))
	b[0] = uint8(len(h.Private) / 4)
	if h.Control {
		b[0] |= 1 << 5
	}
	b[1] = orDefault(h.Protocol, at.nextProtocol())
	binary.BigEndian.PutUint16(b[2:], h.Flags)
	return append(append(b, h.Private...), payload...)
}
func (GUEHeader) etherType() uint16 { return 0 }
func (GUEHeader) protocol() uint8   { return 0 }
