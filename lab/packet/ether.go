package packet

import "encoding/binary"

// EtherTypes (IEEE 802 numbers).
const (
	EtherTypeIPv4 = 0x0800
	EtherTypeARP  = 0x0806
	EtherTypeVLAN = 0x8100 // customer tag, IEEE 802.1Q
	EtherTypeIPv6 = 0x86dd
	EtherTypeQinQ = 0x88a8 // service tag, IEEE 802.1ad
	EtherTypeLLDP = 0x88cc
)

// EthernetHeader is an Ethernet II header.
type EthernetHeader struct {
	Dst, Src [6]byte
	Type     uint16 // 0: of what follows
}

func (h EthernetHeader) prepend(payload []byte, at place) []byte {
	b := append(append(make([]byte, 0, 14+len(payload)), h.Dst[:]...), h.Src[:]...)
	b = binary.BigEndian.AppendUint16(b, orNext(h.Type, at))
	return append(b, payload...)
}
func (EthernetHeader) etherType() uint16 { return 0 }
func (EthernetHeader) protocol() uint8   { return 143 } // RFC 8986

// VLANTag is an IEEE 802.1Q or 802.1ad tag.
type VLANTag struct {
	TPID     uint16 // 0: EtherTypeVLAN
	Priority uint8
	DropOK   bool // the DEI bit
	ID       uint16
	Type     uint16 // 0: of what follows
}

func (h VLANTag) prepend(payload []byte, at place) []byte {
	tci := uint16(h.Priority)<<13 | h.ID
	if h.DropOK {
		tci |= 1 << 12
	}
	b := binary.BigEndian.AppendUint16(make([]byte, 0, 4+len(payload)), tci)
	b = binary.BigEndian.AppendUint16(b, orNext(h.Type, at))
	return append(b, payload...)
}

func (h VLANTag) etherType() uint16 {
	if h.TPID == 0 {
		return EtherTypeVLAN
	}
	return h.TPID
}
func (VLANTag) protocol() uint8 { return 0 }

func orNext(etherType uint16, at place) uint16 {
	if etherType != 0 {
		return etherType
	}
	return at.nextEtherType()
}
