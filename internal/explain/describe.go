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

	"weir.io/weir/internal/model"
)

// ports are those where a datagram's payload is a tunnel's (IANA).
var ports = map[layers.UDPPort]gopacket.LayerType{
	6080: layers.LayerTypeAGUEVar0, model.DefaultVXLANPort: layers.LayerTypeVXLAN, model.DefaultGenevePort: layers.LayerTypeGeneve,
}

// tunnels are those of tenants' networks.
var tunnels = map[model.SegmentKind]gopacket.LayerType{model.SegmentVXLAN: layers.LayerTypeVXLAN, model.SegmentGeneve: layers.LayerTypeGeneve}

// mostHeaders bounds how many headers of a frame are read: more than a packet in GUE in a tenant's network has.
const mostHeaders = 24

// headers reads a frame's headers one after the other.
type headers struct {
	rest []byte
	next gopacket.LayerType
	kind model.SegmentKind // of the tunnel that the frame is known to be in, whatever its port; none: it is not known
	read int
}

func headersOf(frame []byte, kind model.SegmentKind) *headers {
	return &headers{rest: frame, next: layers.LayerTypeEthernet, kind: kind}
}

// header decodes the next one; nil: what follows is none that is decoded, or it is cut short.
func (h *headers) header() (d gopacket.DecodingLayer, cut bool) {
	decoder := decoderOf(h.next)
	if h.read++; decoder == nil || len(h.rest) == 0 || h.read > mostHeaders {
		return nil, false
	}
	if err := decoder.DecodeFromBytes(h.rest, gopacket.NilDecodeFeedback); err != nil {
		return nil, true
	}
	rest := decoder.LayerPayload()
	if g, is := decoder.(*layers.Geneve); is { // the library counts bytes of many options wrongly
		rest = h.rest[8+int(g.OptionsLength):]
	}
	h.rest, h.next = rest, following(decoder)
	if udp, is := decoder.(*layers.UDP); is {
		if tunnel, known := ports[udp.DstPort]; known {
			h.next = tunnel
		} else if tunnel, known := tunnels[h.kind]; known {
			h.next = tunnel
		}
		h.kind = model.SegmentNone // the first datagram is the tunnel
	}
	return decoder, false
}

// Describe says what is in a frame, a line for each header.
func Describe(frame []byte) []string { return describeIn(frame, model.SegmentNone) }

// describeIn does so for a frame that is known to be in a tunnel of this kind.
func describeIn(frame []byte, kind model.SegmentKind) []string {
	var lines []string
	h := headersOf(frame, kind)
	for {
		decoder, cut := h.header()
		if cut {
			return append(lines, fmt.Sprintf("%s: cut short (%d bytes)", strings.ToLower(h.next.String()), len(h.rest)))
		}
		if decoder == nil {
			break
		}
		lines = append(lines, describe(decoder))
	}
	if len(h.rest) > 0 {
		lines = append(lines, fmt.Sprintf("payload: %d bytes", len(h.rest)))
	}
	return lines
}

// decoderOf returns a decoder of a header; nil: what follows is not decoded.
func decoderOf(next gopacket.LayerType) gopacket.DecodingLayer {
	for _, d := range []gopacket.DecodingLayer{&layers.Ethernet{}, &layers.Dot1Q{}, &layers.ARP{}, &layers.IPv4{}, &layers.IPv6{}, &layers.IPv6Fragment{},
		&layers.TCP{}, &layers.UDP{}, &layers.SCTP{}, &layers.ICMPv4{}, &layers.ICMPv6{}, &layers.AGUEVar0{}, &layers.VXLAN{}, &layers.Geneve{}} {
		if d.CanDecode().Contains(next) {
			return d
		}
	}
	return nil
}

// following is the type of what follows a header.
func following(d gopacket.DecodingLayer) gopacket.LayerType {
	switch h := d.(type) {
	case *layers.TCP, *layers.UDP, *layers.SCTP, *layers.ICMPv4, *layers.ICMPv6:
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
	case *layers.SCTP:
		return fmt.Sprintf("sctp: %d > %d, tag %#08x", h.SrcPort, h.DstPort, h.VerificationTag)
	case *layers.ICMPv4:
		return fmt.Sprintf("icmp: %s", h.TypeCode)
	case *layers.ICMPv6:
		return fmt.Sprintf("icmpv6: %s", h.TypeCode)
	case *layers.VXLAN:
		return "vxlan: " + vniOf(d)
	case *layers.Geneve:
		return "geneve: " + vniOf(d)
	case *layers.AGUEVar0:
		return "gue: " + strings.ToLower(h.Protocol.String()) + row(h.Extensions)
	}
	return "?"
}

// vniOf says which network a tunnel's header names.
func vniOf(d gopacket.DecodingLayer) string {
	switch h := d.(type) {
	case *layers.VXLAN:
		if h.ValidIDFlag {
			return fmt.Sprintf("VNI %d", h.VNI)
		}
	case *layers.Geneve:
		if h.OptionsLength > 0 {
			return fmt.Sprintf("VNI %d, options of %d bytes", h.VNI, h.OptionsLength)
		}
		return fmt.Sprintf("VNI %d", h.VNI)
	}
	return "no VNI"
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
