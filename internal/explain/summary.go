package explain

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Summary says in a few words what a frame is: the innermost addresses and ports that are
// reached without looking into a tunnel.
func Summary(frame []byte) string {
	var source, destination net.IP
	next := gopacket.LayerType(layers.LayerTypeEthernet)
	for range 16 {
		decoder := decoderOf(next)
		if decoder == nil || decoder.DecodeFromBytes(frame, gopacket.NilDecodeFeedback) != nil {
			break
		}
		frame, next = decoder.LayerPayload(), following(decoder)
		switch h := decoder.(type) {
		case *layers.ARP:
			return "arp"
		case *layers.IPv4:
			source, destination = h.SrcIP, h.DstIP
		case *layers.IPv6:
			source, destination = h.SrcIP, h.DstIP
		case *layers.TCP:
			return fmt.Sprintf("tcp %s %s", between(source, int(h.SrcPort), destination, int(h.DstPort)), flagsOf(h))
		case *layers.UDP:
			return "udp " + between(source, int(h.SrcPort), destination, int(h.DstPort))
		case *layers.ICMPv4:
			return fmt.Sprintf("icmp %s > %s %s", source, destination, h.TypeCode)
		case *layers.ICMPv6:
			return fmt.Sprintf("icmpv6 %s > %s %s", source, destination, h.TypeCode)
		}
		if isTunnel(decoder, next) {
			break
		}
	}
	if source == nil {
		return strings.ToLower(next.String())
	}
	return fmt.Sprintf("%s %s > %s", strings.ToLower(next.String()), source, destination)
}

// isTunnel says whether another IP header follows one.
func isTunnel(d gopacket.DecodingLayer, next gopacket.LayerType) bool {
	switch d.(type) {
	case *layers.IPv4, *layers.IPv6:
		return next == layers.LayerTypeIPv4 || next == layers.LayerTypeIPv6
	}
	return false
}

func between(source net.IP, from int, destination net.IP, to int) string {
	return net.JoinHostPort(source.String(), strconv.Itoa(from)) + " > " + net.JoinHostPort(destination.String(), strconv.Itoa(to))
}
