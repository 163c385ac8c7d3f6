package explain

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.io/weir/internal/model"
)

// sender is a frame's source: a locally administered address that no host has.
var sender = net.HardwareAddr{0x02, 'w', 'e', 'i', 'r', 0}

// mostPayload keeps a frame within what a director's links may carry.
const mostPayload = 9000

// DefaultTTL is the TTL of a packet whose question gives none.
const DefaultTTL = 64

// Build returns the frame that a question is about, on its way to an interface's address.
func Build(q *model.Question, to model.MAC) ([]byte, error) {
	if len(q.Frame) > 0 {
		if len(q.Frame) < 14 {
			return nil, fmt.Errorf("frame: %d bytes are no Ethernet frame", len(q.Frame))
		}
		return q.Frame, nil
	}
	source, destination := q.Source.Addr().Unmap(), q.Destination.Addr().Unmap()
	switch {
	case !source.IsValid():
		return nil, errors.New("source: is required (198.51.100.7:5555)")
	case !destination.IsValid():
		return nil, errors.New("destination: is required (203.0.113.10:443)")
	case source.Is4() != destination.Is4():
		return nil, fmt.Errorf("destination: %v is of another family than the source %v", destination, source)
	case len(q.Payload) > mostPayload:
		return nil, fmt.Errorf("payload: %d bytes are more than %d", len(q.Payload), mostPayload)
	}
	l4, protocol, err := transport(q, source.Is4())
	if err != nil {
		return nil, err
	}
	stack, tags, err := ethernet(q.Segment, to, source.Is4())
	if err != nil {
		return nil, err
	}
	ttl := q.TTL
	if ttl == 0 {
		ttl = DefaultTTL
	}
	var network gopacket.NetworkLayer
	if source.Is4() {
		ip := &layers.IPv4{Version: 4, TTL: ttl, Protocol: protocol, Flags: layers.IPv4DontFragment, SrcIP: source.AsSlice(), DstIP: destination.AsSlice()}
		network, stack = ip, append(append(stack, tags...), ip)
	} else {
		ip := &layers.IPv6{Version: 6, HopLimit: ttl, NextHeader: protocol, SrcIP: source.AsSlice(), DstIP: destination.AsSlice()}
		network, stack = ip, append(append(stack, tags...), ip)
	}
	for _, layer := range l4 {
		if summed, is := layer.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); is {
			if err := summed.SetNetworkLayerForChecksum(network); err != nil {
				return nil, fmt.Errorf("build the packet: %w", err)
			}
		}
		stack = append(stack, layer)
	}
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(stack, gopacket.Payload(q.Payload))...); err != nil {
		return nil, fmt.Errorf("build the packet: %w", err)
	}
	return buffer.Bytes(), nil
}

// ethernet returns the header of the frame and the tags of its segment.
func ethernet(segment model.Segment, to model.MAC, is4 bool) (header, tags []gopacket.SerializableLayer, err error) {
	inner := layers.EthernetTypeIPv6
	if is4 {
		inner = layers.EthernetTypeIPv4
	}
	first := &layers.Ethernet{SrcMAC: sender, DstMAC: to[:], EthernetType: inner}
	header = []gopacket.SerializableLayer{first}
	switch {
	case segment == model.Segment{}:
		return header, nil, nil
	case segment.Kind != model.SegmentVLAN:
		return nil, nil, fmt.Errorf("segment: packets of %s cannot be made up", segment)
	case segment.ID > 0xfff:
		first.EthernetType = layers.EthernetTypeQinQ
		return header, []gopacket.SerializableLayer{
			&layers.Dot1Q{VLANIdentifier: uint16(segment.ID >> 12), Type: layers.EthernetTypeDot1Q},
			&layers.Dot1Q{VLANIdentifier: uint16(segment.ID & 0xfff), Type: inner}}, nil
	}
	first.EthernetType = layers.EthernetTypeDot1Q
	return header, []gopacket.SerializableLayer{&layers.Dot1Q{VLANIdentifier: uint16(segment.ID), Type: inner}}, nil
}

// transport returns what follows the IP header.
func transport(q *model.Question, is4 bool) ([]gopacket.SerializableLayer, layers.IPProtocol, error) {
	from, to := q.Source.Port(), q.Destination.Port()
	if q.Protocol != "tcp" && len(q.Flags) > 0 {
		return nil, 0, fmt.Errorf("flags: %s has none", q.Protocol)
	}
	switch q.Protocol {
	case "tcp":
		tcp := &layers.TCP{SrcPort: layers.TCPPort(from), DstPort: layers.TCPPort(to), Seq: 1, Window: 0xffff}
		flags := q.Flags
		if len(flags) == 0 {
			flags = []string{"ack"}
		}
		set := map[string]*bool{"fin": &tcp.FIN, "syn": &tcp.SYN, "rst": &tcp.RST, "psh": &tcp.PSH, "ack": &tcp.ACK, "urg": &tcp.URG, "ece": &tcp.ECE, "cwr": &tcp.CWR}
		for _, name := range flags {
			flag := set[strings.ToLower(name)]
			if flag == nil {
				return nil, 0, fmt.Errorf("flags: unknown flag %q (some of fin, syn, rst, psh, ack, urg, ece, cwr)", model.Shown(name))
			}
			*flag = true
		}
		if tcp.ACK {
			tcp.Ack = 1
		}
		return []gopacket.SerializableLayer{tcp}, layers.IPProtocolTCP, nil
	case "udp":
		return []gopacket.SerializableLayer{&layers.UDP{SrcPort: layers.UDPPort(from), DstPort: layers.UDPPort(to)}}, layers.IPProtocolUDP, nil
	case "sctp":
		// The tag of an association that is open, as any but 0 says (RFC 9260, 8.5.1).
		return []gopacket.SerializableLayer{&layers.SCTP{SrcPort: layers.SCTPPort(from), DstPort: layers.SCTPPort(to), VerificationTag: 1}}, layers.IPProtocolSCTP, nil
	case "icmp":
		if is4 {
			return []gopacket.SerializableLayer{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: 1, Seq: 1}}, layers.IPProtocolICMPv4, nil
		}
		return []gopacket.SerializableLayer{&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeEchoRequest, 0)},
			&layers.ICMPv6Echo{Identifier: 1, SeqNumber: 1}}, layers.IPProtocolICMPv6, nil
	}
	return nil, 0, fmt.Errorf("protocol: unknown protocol %q (tcp, udp, sctp or icmp)", q.Protocol)
}

// Endpoint reads an address with a port, or one without: 198.51.100.7:5555, [2001:db8::7]:5555,
// 198.51.100.7.
func Endpoint(text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, 0), nil
	}
	end, err := netip.ParseAddrPort(text)
	if err != nil {
		return end, fmt.Errorf("%q is no address with a port (198.51.100.7:5555 or [2001:db8::7]:5555)", text)
	}
	return end, nil
}
