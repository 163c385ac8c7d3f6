package explain

import (
	"fmt"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.io/weir/internal/model"
)

// Tunnel is how a packet of a tenant's network in VXLAN or Geneve comes to a director.
type Tunnel struct {
	Wire     model.Segment // with the VNI that the network has on the wire
	From, To netip.Addr    // the VTEPs: another one, and the director's
	Port     uint16        // UDP
	VLAN     uint16        // tag of the outer frame; 0: none
	MAC      model.MAC     // of the director in the network
	Known    bool          // the packet's source is at the other VTEP; false: nothing says where it is
}

// BuildInside returns the frame that a question about a packet in such a network is about, in its tunnel, on its
// way to an interface's address.
func BuildInside(q *model.Question, t *Tunnel, to model.MAC) ([]byte, error) {
	inside := *q
	inside.Segment = model.Segment{}
	frame, err := Build(&inside, t.MAC)
	if err != nil {
		return nil, err
	}
	outer := model.Segment{}
	if t.VLAN != 0 {
		outer = model.Segment{Kind: model.SegmentVLAN, ID: uint32(t.VLAN)}
	}
	stack, tags, err := ethernet(outer, to, t.To.Is4())
	if err != nil {
		return nil, err
	}
	stack = append(stack, tags...)
	const ephemeral = 49152 // RFC 7348, section 5: the source port is of the flow, from here on
	udp := &layers.UDP{SrcPort: ephemeral, DstPort: layers.UDPPort(t.Port)}
	var network gopacket.NetworkLayer
	if t.To.Is4() {
		ip := &layers.IPv4{Version: 4, TTL: DefaultTTL, Protocol: layers.IPProtocolUDP, Flags: layers.IPv4DontFragment, SrcIP: t.From.AsSlice(), DstIP: t.To.AsSlice()}
		network, stack = ip, append(stack, ip)
	} else {
		ip := &layers.IPv6{Version: 6, HopLimit: DefaultTTL, NextHeader: layers.IPProtocolUDP, SrcIP: t.From.AsSlice(), DstIP: t.To.AsSlice()}
		network, stack = ip, append(stack, ip)
	}
	if err := udp.SetNetworkLayerForChecksum(network); err != nil {
		return nil, fmt.Errorf("build the packet: %w", err)
	}
	var header gopacket.SerializableLayer = &layers.VXLAN{ValidIDFlag: true, VNI: t.Wire.ID}
	if t.Wire.Kind == model.SegmentGeneve {
		header = &layers.Geneve{Protocol: layers.EthernetTypeTransparentEthernetBridging, VNI: t.Wire.ID}
	}
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(stack, udp, header, gopacket.Payload(frame))...); err != nil {
		return nil, fmt.Errorf("build the packet: %w", err)
	}
	return buffer.Bytes(), nil
}
