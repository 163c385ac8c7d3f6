package packet

import "encoding/binary"

// UDP ports of overlays (IANA).
const (
	VXLANPort  = 4789
	GenevePort = 6081
)

// VXLANHeader is the header of RFC 7348, before an Ethernet frame.
type VXLANHeader struct {
	VNI   uint32
	Flags uint8 // 0: the VNI is valid
}

func (h VXLANHeader) prepend(payload []byte, _ place) []byte {
	b := make([]byte, 8, 8+len(payload))
	b[0] = orDefault(h.Flags, 8)
	binary.BigEndian.PutUint32(b[4:], h.VNI<<8)
	return append(b, payload...)
}
func (VXLANHeader) etherType() uint16 { return 0 }
func (VXLANHeader) protocol() uint8   { return NoNextHeader }

// GeneveHeader is the header of RFC 8926, before an Ethernet frame.
type GeneveHeader struct {
	VNI      uint32
	Flags    uint8  // control and critical
	Version  uint8  // as in the first byte
	Protocol uint16 // 0: Ethernet
	Options  []byte // a multiple of 4
	Words    uint8  // that options are said to have; 0: as many as they have
}

func (h GeneveHeader) prepend(payload []byte, _ place) []byte {
	b := make([]byte, 8, 8+len(h.Options)+len(payload))
	b[0] = h.Version | orDefault(h.Words, uint8(len(h.Options)/4))
	b[1] = h.Flags
	binary.BigEndian.PutUint16(b[2:], 0x6558)
	if h.Protocol != 0 {
		binary.BigEndian.PutUint16(b[2:], h.Protocol)
	}
	binary.BigEndian.PutUint32(b[4:], h.VNI<<8)
	return append(append(b, h.Options...), payload...)
}
func (GeneveHeader) etherType() uint16 { return 0 }
func (GeneveHeader) protocol() uint8   { return NoNextHeader }

// ARPHeader is a question or an answer of RFC 826, for IPv4 over Ethernet.
type ARPHeader struct {
	Operation            uint16
	SenderMAC, TargetMAC [6]byte
	Sender, Target       [4]byte
}

// Operations of ARP.
const (
	ARPRequest = 1
	ARPReply   = 2
)

func (h ARPHeader) prepend(payload []byte, _ place) []byte {
	b := []byte{0, 1, 8, 0, 6, 4}
	b = binary.BigEndian.AppendUint16(b, h.Operation)
	b = append(append(b, h.SenderMAC[:]...), h.Sender[:]...)
	b = append(append(b, h.TargetMAC[:]...), h.Target[:]...)
	return append(b, payload...)
}
func (ARPHeader) etherType() uint16 { return 0x0806 }
func (ARPHeader) protocol() uint8   { return NoNextHeader }
