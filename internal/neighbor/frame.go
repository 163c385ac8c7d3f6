package neighbor

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"weir.io/weir/internal/model"
)

// Values in frames (linux/if_ether.h, RFC 826, RFC 4861).
const (
	ethernetLength = 14
	etherTypeARP   = 0x0806
	etherTypeIPv6  = 0x86dd

	arpLength  = 28
	arpRequest = 1
	arpReply   = 2

	ipv6Length           = 40
	protocolICMPv6       = 58
	hopLimit             = 255 // of packets that no router has forwarded
	neighborSolicitation = 135
	neighborAdvert       = 136
	messageLength        = 24 // of both, without options
	optionSource         = 1  // link-layer address
	optionTarget         = 2
	flagSolicited        = 1 << 30
	flagOverride         = 1 << 29
)

// mac is an Ethernet address.
type mac [6]byte

var (
	broadcast = mac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodes  = netip.MustParseAddr("ff02::1")
)

// heard is what a frame says.
type heard struct {
	// asks is the address that the sender asks for; zero: none.
	asks netip.Addr
	// claims is the address that the sender says is its own; zero: none. Questions also have it.
	claims netip.Addr
	from   mac
}

// parse returns what a frame says, if it is a question or a claim that a host on the link would
// accept.
func parse(frame []byte) (h heard, ok bool) {
	if len(frame) < ethernetLength {
		return h, false
	}
	switch body := frame[ethernetLength:]; binary.BigEndian.Uint16(frame[12:]) {
	case etherTypeARP:
		return parseARP(body)
	case etherTypeIPv6:
		return parseNDP(body, mac(frame[6:12]))
	}
	return h, false
}

func parseARP(p []byte) (h heard, ok bool) {
	// Ethernet, IPv4, and the lengths of their addresses.
	if len(p) < arpLength || binary.BigEndian.Uint64(p)>>16 != 0x0001_0800_0604 {
		return h, false
	}
	operation := binary.BigEndian.Uint16(p[6:])
	if operation != arpRequest && operation != arpReply {
		return h, false
	}
	h.from = mac(p[8:14])
	sender, target := netip.AddrFrom4([4]byte(p[14:18])), netip.AddrFrom4([4]byte(p[24:28]))
	if !sender.IsUnspecified() {
		h.claims = sender
	}
	// A host that asks for its own address does not want an answer.
	if operation == arpRequest && sender != target && !target.IsUnspecified() {
		h.asks = target
	}
	return h, h.asks.IsValid() || h.claims.IsValid()
}

// parseNDP checks what RFC 4861 7.1 tells hosts to check.
func parseNDP(p []byte, from mac) (h heard, ok bool) {
	if len(p) < ipv6Length+messageLength || p[0]>>4 != 6 || p[6] != protocolICMPv6 || p[7] != hopLimit {
		return h, false
	}
	length := int(binary.BigEndian.Uint16(p[4:]))
	if length < messageLength || len(p) < ipv6Length+length {
		return h, false
	}
	source, destination := netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
	message := p[ipv6Length : ipv6Length+length]
	if message[1] != 0 || model.Checksum(protocolICMPv6, source, destination, message) != 0 {
		return h, false
	}
	target := netip.AddrFrom16([16]byte(message[8:24]))
	addresses, ok := options(message[messageLength:])
	if !ok || target.IsMulticast() || target.IsUnspecified() || source.IsMulticast() {
		return h, false
	}
	h.from = from
	switch message[0] {
	case neighborSolicitation:
		h.asks = target
		if source.IsUnspecified() { // it wants to have the address
			return h, destination == solicitedNode(target) && addresses[optionSource] == nil
		}
		h.claims = source
		if a := addresses[optionSource]; a != nil {
			h.from = *a
		}
		return h, true
	case neighborAdvert:
		h.claims = target
		if a := addresses[optionTarget]; a != nil {
			h.from = *a
		}
		return h, !destination.IsMulticast() || binary.BigEndian.Uint32(message[4:])&flagSolicited == 0
	}
	return h, false
}

// options returns the link-layer addresses among the options of a message, by their kind.
func options(rest []byte) (addresses [3]*mac, ok bool) {
	for len(rest) > 0 {
		if len(rest) < 2 || rest[1] == 0 || len(rest) < 8*int(rest[1]) {
			return addresses, false
		}
		if kind := rest[0]; (kind == optionSource || kind == optionTarget) && rest[1] == 1 {
			a := mac(rest[2:8])
			addresses[kind] = &a
		}
		rest = rest[8*int(rest[1]):]
	}
	return addresses, true
}

// answer returns the frame that answers a question: the address is at this one.
func answer(h heard, own mac) []byte {
	if h.asks.Is4() {
		asker := netip.IPv4Unspecified()
		if h.claims.IsValid() {
			asker = h.claims
		}
		return arp(arpReply, h.from, own, h.asks, h.from, asker)
	}
	if !h.claims.IsValid() { // it has no address yet to which an answer could go
		return advert(h.asks, own, multicast(allNodes), allNodes, flagOverride)
	}
	return advert(h.asks, own, h.from, h.claims, flagSolicited|flagOverride)
}

// announcements returns the frames that tell all hosts on the link that an address is at this
// director's. Some hosts take only requests, and others only replies (RFC 5944 4.6).
func announcements(vip netip.Addr, own mac) [][]byte {
	if vip.Is4() {
		return [][]byte{arp(arpRequest, broadcast, own, vip, mac{}, vip), arp(arpReply, broadcast, own, vip, own, vip)}
	}
	return [][]byte{advert(vip, own, multicast(allNodes), allNodes, flagOverride)}
}

func ethernet(to, from mac, etherType uint16, length int) []byte {
	frame := make([]byte, 0, ethernetLength+length)
	frame = append(frame, to[:]...)
	frame = append(frame, from[:]...)
	return binary.BigEndian.AppendUint16(frame, etherType)
}

func arp(operation uint16, to, own mac, vip netip.Addr, targetMAC mac, target netip.Addr) []byte {
	frame := ethernet(to, own, etherTypeARP, arpLength)
	frame = append(frame, 0, 1, 8, 0, 6, 4)
	frame = binary.BigEndian.AppendUint16(frame, operation)
	frame = append(append(frame, own[:]...), vip.AsSlice()...)
	return append(append(frame, targetMAC[:]...), target.AsSlice()...)
}

// advert comes from the VIP itself, as from a host that has it.
func advert(vip netip.Addr, own, to mac, destination netip.Addr, flags uint32) []byte {
	message := []byte{neighborAdvert, 0, 0, 0}
	message = binary.BigEndian.AppendUint32(message, flags)
	message = append(append(message, vip.AsSlice()...), optionTarget, 1)
	message = append(message, own[:]...)
	binary.BigEndian.PutUint16(message[2:], model.Checksum(protocolICMPv6, vip, destination, message))

	frame := ethernet(to, own, etherTypeIPv6, ipv6Length+len(message))
	frame = append(frame, 6<<4, 0, 0, 0)
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(message)))
	frame = append(frame, protocolICMPv6, hopLimit)
	frame = append(append(frame, vip.AsSlice()...), destination.AsSlice()...)
	return append(frame, message...)
}

// solicitedNode is the group that all hosts with an address are in (RFC 4291 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	own := a.As16()
	copy(group[13:], own[13:])
	return netip.AddrFrom16(group)
}

// multicast is the Ethernet address of an IPv6 group (RFC 2464 7).
func multicast(group netip.Addr) mac {
	a := group.As16()
	return mac{0x33, 0x33, a[12], a[13], a[14], a[15]}
}

func (m mac) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}
