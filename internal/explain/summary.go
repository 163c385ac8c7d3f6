package explain

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.io/weir/internal/model"
)

// Summary says in a few words what a frame of a segment is: the innermost addresses and ports that are reached
// without looking into a tunnel, but for that of a tenant's network, which is named behind them. The zero value as a
// segment: it is in none, or that is not known.
func Summary(frame []byte, in model.Segment) string {
	var source, destination net.IP
	tunnel := ""
	h := headersOf(frame, in.Kind)
	for {
		decoder, _ := h.header()
		if decoder == nil {
			break
		}
		switch d := decoder.(type) {
		case *layers.ARP:
			return "arp" + arpText(d) + tunnel
		case *layers.IPv4:
			source, destination = d.SrcIP, d.DstIP
		case *layers.IPv6:
			source, destination = d.SrcIP, d.DstIP
		case *layers.VXLAN:
			tunnel = fmt.Sprintf(", in vxlan %s %s > %s", vniOf(decoder), source, destination)
			source, destination = nil, nil
		case *layers.Geneve:
			tunnel = fmt.Sprintf(", in geneve %s %s > %s", vniOf(decoder), source, destination)
			source, destination = nil, nil
		case *layers.TCP:
			return fmt.Sprintf("tcp %s %s", between(source, int(d.SrcPort), destination, int(d.DstPort)), flagsOf(d)) + tunnel
		case *layers.UDP:
			if h.next != layers.LayerTypeVXLAN && h.next != layers.LayerTypeGeneve || len(h.rest) < shortestTunnel {
				return "udp " + between(source, int(d.SrcPort), destination, int(d.DstPort)) + tunnel
			}
		case *layers.SCTP:
			return "sctp " + between(source, int(d.SrcPort), destination, int(d.DstPort)) + tunnel
		case *layers.ICMPv4:
			return fmt.Sprintf("icmp %s > %s %s", source, destination, d.TypeCode) + tunnel
		case *layers.ICMPv6:
			return fmt.Sprintf("icmpv6 %s > %s %s", source, destination, d.TypeCode) + tunnel
		}
		if isTunnel(decoder, h.next) {
			break
		}
	}
	name := strings.ToLower(h.next.String())
	if source == nil {
		return name + tunnel
	}
	return fmt.Sprintf("%s %s > %s", name, source, destination) + tunnel
}

// shortestTunnel is how long the headers of VXLAN and Geneve are at least.
const shortestTunnel = 8

// arpText says what is asked.
func arpText(a *layers.ARP) string {
	if a.Operation != layers.ARPRequest || len(a.DstProtAddress) != net.IPv4len {
		return ""
	}
	return fmt.Sprintf(" who has %v", net.IP(a.DstProtAddress))
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
