package traffic

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"weir.io/weir/internal/model"
)

// Overlay is the tunnel that frames are in, of VXLAN (RFC 7348) or Geneve (RFC 8926). The zero value: they are in
// none.
type Overlay struct {
	Kind model.SegmentKind // model.SegmentVXLAN or SegmentGeneve
	IPv6 bool              // of the outer header
	VNI  uint32            // of the first tenant; the others have those after it
	// From and To are the VTEPs that frames are sent from and to. They say nothing of what arrives.
	From, To netip.Addr
	// Tenants is how many have networks with the same addresses: flow n is of tenant n % Tenants. 0: one.
	Tenants int
}

// Given reports whether frames are in a tunnel.
func (o Overlay) Given() bool { return o.Kind != model.SegmentNone }

// String is its kind and family: vxlan, geneve over ipv6.
func (o Overlay) String() string {
	kind := map[model.SegmentKind]string{model.SegmentNone: "none", model.SegmentVXLAN: "vxlan", model.SegmentGeneve: "geneve"}[o.Kind]
	if o.IPv6 {
		kind += " over ipv6"
	}
	return kind
}

// tenants is how many there are.
func (o Overlay) tenants() int { return max(o.Tenants, 1) }

// Segment is a tenant's network.
func (o Overlay) Segment(tenant int) model.Segment {
	return model.Segment{Kind: o.Kind, ID: o.VNI + uint32(tenant)}
}

// length is how much longer a frame is by its outer headers.
func (o Overlay) length() int {
	switch {
	case !o.Given():
		return 0
	case o.IPv6:
		return 14 + 40 + 8 + 8
	}
	return 14 + 20 + 8 + 8
}

// OverlayMAC is the MAC address that frames in tunnels are sent to: the balancer's in all networks.
var OverlayMAC = net.HardwareAddr{0x02, 0x00, 0x5e, 0x00, 0x00, 0x01}

// insideSource is the MAC address that they are sent from.
var insideSource = net.HardwareAddr{0x02, 0x00, 0x5e, 0x00, 0x00, 0x02}

// The VTEP of backend 0 of the first tenant.
var vtep4, vtep6 = netip.MustParseAddr("10.128.0.1"), netip.MustParseAddr("fd00:2::1")

// VTEPs4 and VTEPs6 are the networks that all VTEPs of backends are in.
var VTEPs4, VTEPs6 = netip.MustParsePrefix("10.128.0.0/13"), netip.MustParsePrefix("fd00:2::/64")

// VTEP_TENANT and VTEP_MOVED in arrival.h; and what is left.
const (
	vtepTenant  = 0x10000
	vtepMoved   = 0x8000
	mostTenants = 8
)

// VTEP returns where a tenant's backend is: each has a host of its own, and another that it may move to.
func VTEP(tenant, backend int, moved, ipv6 bool) netip.Addr {
	n := tenant*vtepTenant + backend
	if moved {
		n += vtepMoved
	}
	return numbered(vtep4, vtep6, n, ipv6)
}

func (o Overlay) validate() error {
	switch {
	case !o.Given():
		return nil
	case o.Kind != model.SegmentVXLAN && o.Kind != model.SegmentGeneve:
		return fmt.Errorf("a tunnel is of VXLAN or Geneve, not %v", o.Kind)
	case o.tenants() > mostTenants:
		return fmt.Errorf("%d tenants are more than %d", o.Tenants, mostTenants)
	case o.VNI == 0 || o.VNI+uint32(o.tenants()) > 1<<24:
		return fmt.Errorf("%d tenants from VNI %d on have no VNI each", o.tenants(), o.VNI)
	}
	return nil
}

// sent are the constants of a source.
func (o Overlay) sent() (map[string]any, error) {
	if !o.Given() {
		return nil, nil
	}
	for _, a := range []netip.Addr{o.From, o.To} {
		if a.Is6() != o.IPv6 || !a.IsValid() {
			return nil, fmt.Errorf("%v is no VTEP's address of a tunnel over IPv6: %t", a, o.IPv6)
		}
	}
	constants := o.constants()
	constants["inside_mac"] = halfwords(OverlayMAC, insideSource)
	if o.IPv6 {
		constants["vtep_from6"], constants["vtep_to6"] = words6(o.From), words6(o.To)
	} else {
		constants["vtep_from4"], constants["vtep_to4"] = word4(o.From), word4(o.To)
	}
	return constants, nil
}

// arriving are the constants of a sink.
func (o Overlay) arriving() map[string]any {
	constants := o.constants()
	constants["vtep4"], constants["vtep6"] = word4(vtep4), words6(vtep6)
	return constants
}

// etherBridging is what Geneve says of an Ethernet frame, and vxlanHasVNI what VXLAN says of its VNI.
const (
	etherBridging = 0x6558
	vxlanHasVNI   = 0x08 << 24
)

func (o Overlay) constants() map[string]any {
	if !o.Given() {
		return map[string]any{}
	}
	port, first := uint16(model.DefaultVXLANPort), uint32(vxlanHasVNI)
	if o.Kind == model.SegmentGeneve {
		port, first = model.DefaultGenevePort, etherBridging
	}
	return map[string]any{"overlay_port": port, "overlay_first": first, "overlay_vni": o.VNI, "overlay6": truth(o.IPv6), "tenants": uint32(o.tenants())}
}

// halfwords are MAC addresses as in memory.
func halfwords(addresses ...net.HardwareAddr) (words [6]uint16) {
	for i, a := range addresses {
		for j := range 3 {
			words[3*i+j] = binary.LittleEndian.Uint16(a[2*j:])
		}
	}
	return words
}
