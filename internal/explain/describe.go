// Package explain asks a director what it would do with a packet, and says it in words: it
// builds the packet that a question describes, adds to the answer which generations of the
// service's log place the flow, and describes frames header by header.
package explain

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// guePort is where a datagram's payload is GUE (IANA).
const guePort = 6080

// Describe says what is in a frame, a line for each header.
func Describe(frame []byte) []string {
	var lines []string
	next := gopacket.LayerType(layers.LayerTypeEthernet)
	for depth := 0; depth < 16 && len(frame) > 0; depth++ {
		decoder := decoderOf(next)
		if decoder == nil {
			break
		}
		if err := decoder.DecodeFromBytes(frame, gopacket.NilDecodeFeedback); err != nil {
			return append(lines, fmt.Sprintf("%s: cut short (%d bytes)", strings.ToLower(next.String()), len(frame)))
		}
		lines = append(lines, describe(decoder))
		frame, next = decoder.LayerPayload(), following(decoder)
	}
	if len(frame) > 0 {
		lines = append(lines, fmt.Sprintf("payload: %d bytes", len(frame)))
	}
	return lines
}

// decoderOf returns a decoder of a header; nil: what follows is not decoded.
func decoderOf(next gopacket.LayerType) gopacket.DecodingLayer {
	for _, d := range []gopacket.DecodingLayer{&layers.Ethernet{}, &layers.Dot1Q{}, &layers.ARP{}, &layers.IPv4{}, &layers.IPv6{}, &layers.IPv6Fragment{},
		&layers.TCP{}, &layers.UDP{}, &layers.ICMPv4{}, &layers.ICMPv6{}, &layers.AGUEVar0{}} {
		if d.CanDecode().Contains(next) {
			return d
		}
	}
	return nil
}

// following is the type of what follows a header.
func following(d gopacket.DecodingLayer) gopacket.LayerType {
	switch h := d.(type) {
	case *layers.UDP:
		if h.DstPort == guePort {
			return layers.LayerTypeAGUEVar0
		}
		return gopacket.LayerTypePayload
	case *layers.TCP, *layers.ICMPv4, *layers.ICMPv6:
		return gopacket.LayerTypePayload
	case *layers.IPv6Fragment:
		if h.FragmentOffset > 0 || h.MoreFragments {
			return gopacket.LayerTypeFragment
		}
	}
	return d.NextLayerType()
}

func describe(d gopacket.DecodingLayer) string {
	switch h := d.(type) {
	case *layers.Ethernet:
		return fmt.Sprintf("ethernet: %s > %s", h.SrcMAC, h.DstMAC)
	case *layers.Dot1Q:
		return fmt.Sprintf("vlan: %d", h.VLANIdentifier)
	case *layers.ARP:
		return "arp"
	case *layers.IPv4:
		return fmt.Sprintf("ipv4: %s > %s, ttl %d, tos %#02x, length %d%s", h.SrcIP, h.DstIP, h.TTL, h.TOS, h.Length, fragment4(h))
	case *layers.IPv6:
		return fmt.Sprintf("ipv6: %s > %s, hop limit %d, class %#02x, flow label %#05x, length %d", h.SrcIP, h.DstIP, h.HopLimit, h.TrafficClass, h.FlowLabel, 40+int(h.Length))
	case *layers.IPv6Fragment:
		return fmt.Sprintf("fragment: id %#08x, offset %d", h.Identification, 8*int(h.FragmentOffset))
	case *layers.TCP:
		return fmt.Sprintf("tcp: %d > %d, %s", h.SrcPort, h.DstPort, flagsOf(h))
	case *layers.UDP:
		return fmt.Sprintf("udp: %d > %d, length %d", h.SrcPort, h.DstPort, h.Length)
	case *layers.ICMPv4:
		return fmt.Sprintf("icmp: %s", h.TypeCode)
	case *layers.ICMPv6:
		return fmt.Sprintf("icmpv6: %s", h.TypeCode)
	case *layers.AGUEVar0:
		return "gue: " + strings.ToLower(h.Protocol.String()) + row(h.Extensions)
	}
	return "?"
}

func fragment4(h *layers.IPv4) string {
	if h.FragOffset == 0 && h.Flags&layers.IPv4MoreFragments == 0 {
		return ""
	}
	return fmt.Sprintf(", fragment of %#04x at %d", h.Id, 8*int(h.FragOffset))
}

func flagsOf(h *layers.TCP) string {
	var set []string
	for _, f := range []struct {
		is   bool
		name string
	}{{h.FIN, "fin"}, {h.SYN, "syn"}, {h.RST, "rst"}, {h.PSH, "psh"}, {h.ACK, "ack"}, {h.URG, "urg"}, {h.ECE, "ece"}, {h.CWR, "cwr"}} {
		if f.is {
			set = append(set, f.name)
		}
	}
	return strings.Join(set, ",")
}

// row names the hosts that a packet's row has (bpf/abi/row_types.h): four bytes, then their
// addresses, of the family that the length says.
func row(private []byte) string {
	if len(private) < 8 {
		return ""
	}
	hops := int(private[1] & 0xf)
	addresses := private[4:]
	if hops == 0 || len(addresses)%hops != 0 {
		return fmt.Sprintf(", private data of %d bytes", len(private))
	}
	var named []string
	for size := len(addresses) / hops; len(addresses) >= size; addresses = addresses[size:] {
		a, ok := netip.AddrFromSlice(addresses[:size])
		if !ok {
			return fmt.Sprintf(", private data of %d bytes", len(private))
		}
		named = append(named, a.String())
		if len(addresses) == size {
			break
		}
	}
	return ", else to " + strings.Join(named, ", ")
}
