package packet

import (
	"fmt"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// guePort is where a UDP payload is taken for GUE (IANA).
const guePort = 6080

// layer is what gopacket's decoders have in common.
type layer interface {
	gopacket.DecodingLayer
	LayerContents() []byte
}

// cursor decodes a frame header by header.
type cursor struct {
	rest      []byte             // what is not decoded yet
	next      gopacket.LayerType // what rest begins with
	network   gopacket.NetworkLayer
	truncated bool // an IP or UDP length says more than there is
	quoted    bool // inside an ICMP error
}

// SetTruncated makes the cursor a gopacket.DecodeFeedback.
func (c *cursor) SetTruncated() { c.truncated = true }

func newCursor(frame []byte) *cursor {
	return &cursor{rest: frame, next: layers.LayerTypeEthernet}
}

// decode reads one header and moves behind it.
func (c *cursor) decode(l layer) error {
	if !l.CanDecode().Contains(c.next) {
		return fmt.Errorf("%s where %s is expected", c.next, l.CanDecode().LayerTypes()[0])
	}
	if err := l.DecodeFromBytes(c.rest, c); err != nil {
		return fmt.Errorf("decode %s: %w", c.next, err)
	}
	c.rest, c.next = l.LayerPayload(), l.NextLayerType()
	switch h := l.(type) {
	case *layers.IPv4:
		c.network = h
	case *layers.IPv6:
		c.network = h
	case *layers.IPv6Fragment:
		if h.FragmentOffset > 0 || h.MoreFragments { // as gopacket does for IPv4
			c.next = gopacket.LayerTypeFragment
		}
	case *layers.UDP:
		c.next = gopacket.LayerTypePayload
		switch h.DstPort {
		case guePort:
			c.next = layers.LayerTypeAGUEVar0
		case VXLANPort:
			c.next = layers.LayerTypeVXLAN
		case GenevePort:
			c.next = layers.LayerTypeGeneve
		}
	case *layers.TCP, *layers.SCTP:
		c.next = gopacket.LayerTypePayload
	case *layers.ICMPv4:
		c.enterQuote(h.TypeCode.Type() == Unreachable || h.TypeCode.Type() == SourceQuench ||
			h.TypeCode.Type() == RedirectMessage || h.TypeCode.Type() == TimeExceeded || h.TypeCode.Type() == ParameterProblem,
			layers.LayerTypeIPv4)
	case *layers.ICMPv6:
		// gopacket leaves bytes 4 to 7 to the message; ICMPv4 takes them.
		c.rest = c.rest[min(4, len(c.rest)):]
		c.enterQuote(h.TypeCode.Type() < EchoRequest6, layers.LayerTypeIPv6)
	}
	return nil
}

// enterQuote goes on in the packet that an ICMP error carries.
func (c *cursor) enterQuote(isError bool, inner gopacket.LayerType) {
	c.next = gopacket.LayerTypePayload
	if isError && !c.quoted {
		c.next, c.quoted = inner, true
	}
}

// gue makes gopacket's GUE decoder a layer.
type gue struct{ layers.AGUEVar0 }

func (g *gue) NextLayerType() gopacket.LayerType { return g.AGUEVar0.NextLayerType() }

// extension decodes the IPv6 extension headers that gopacket's IPv6 decoder leaves,
// all except the fragment header.
type extension struct{ layers.IPv6ExtensionSkipper }

func (e *extension) LayerContents() []byte { return e.Contents }

// newLayer returns a decoder for what comes next, nil for a payload and for
// what this package does not know.
func (c *cursor) newLayer() layer {
	for _, l := range []layer{
		&layers.Ethernet{}, &layers.Dot1Q{}, &layers.IPv4{}, &layers.IPv6{}, &layers.IPv6Fragment{}, &extension{},
		&layers.IPSecAH{}, &layers.TCP{}, &layers.UDP{}, &layers.SCTP{}, &layers.ICMPv4{}, &layers.ICMPv6{}, &gue{}, &layers.VXLAN{}, &layers.Geneve{}, &layers.ARP{},
	} {
		if l.CanDecode().Contains(c.next) {
			return l
		}
	}
	return nil
}
