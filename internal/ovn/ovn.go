// Package ovn follows OVN's Southbound database: which port of which tenant's network has an address, on
// which host it is, and how a tunnel's packet has to say so. It also keeps the director among OVN's
// chassis, without which no host of OVN takes its packets.
//
// The tables are those of ovn-sb(5), the formats those of ovn-architecture(7), "Tunnel Encapsulations".
package ovn

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weir.io/weir/internal/model"
)

// Kind is how a tunnel wraps packets.
type Kind string

// The kinds that weir and OVN have in common.
const (
	Geneve Kind = "geneve"
	VXLAN  Kind = "vxlan"
)

// Encap is one end of tunnels: a row of the table Encap.
type Encap struct {
	Kind     Kind
	IP       netip.Addr
	Checksum bool   // whether packets to it should have UDP checksums
	Port     uint16 // the UDP port, where it is not the usual one; else 0
}

// Chassis is a host that has ports: a row of the table Chassis.
type Chassis struct {
	Name, Hostname string
	Encaps         []Encap // by kind and address; those of kinds or with addresses that weir does not know are left out
	Weir           bool    // a director has registered it: see Registration
}

// Address is what a port has by the column mac.
type Address struct {
	MAC model.MAC
	IPs []netip.Addr // none: the MAC alone
}

// Port is a VM's or a container's port in a tenant's network: a row of the table Port_Binding whose type
// is empty. Routers' and other ports are not followed: no backend has one.
type Port struct {
	Name      string // for Neutron, the port's ID
	Network   Network
	Key       uint16 // its number in the network
	Addresses []Address
	// Unknown says that the port also takes packets for MAC addresses that no port of the network has.
	Unknown bool
	// Up says that the host of the port has made all flows that its packets need. Before OVN 21.03 no
	// host says so, and each port that has a host is taken to be up.
	Up bool
	// Chassis is the host that has the port; nil: none has it.
	Chassis *Chassis
	// Additional are the hosts that have it, too, while a VM moves: OVN sends packets to all of them.
	Additional []*Chassis
	// Requested is the host that is to have it.
	Requested *Chassis
	// Shared says that another port of the network has one of its addresses, too. Snapshot.Port then
	// prefers one that a host has.
	Shared bool

	encaps []netip.Addr // of the column encap: where its host wants the port's packets
}

// MAC returns the Ethernet address that goes with one of the port's IP addresses.
func (p *Port) MAC(ip netip.Addr) model.MAC {
	for _, a := range p.Addresses {
		if slices.Contains(a.IPs, ip) {
			return a.MAC
		}
	}
	return model.MAC{}
}

// Network is a tenant's network: a row of the table Datapath_Binding that is a logical switch.
type Network struct {
	ID     string // the row's UUID
	Switch string // the logical switch's UUID in the Northbound database
	Name   string // the logical switch's; Neutron names it neutron-ID
	Alias  string // what people call it, where Neutron has made it
	Key    uint32 // its number on the wire: not the VNI that Neutron shows
}

// order is OVN's: of the kinds that both ends have, it takes the first (enum chassis_tunnel_type in
// lib/ovn-util.h), and a host of OVN takes packets of that kind alone.
var order = []Kind{Geneve, VXLAN}

// Tunnel returns where packets to the port have to be sent by a host whose own ends of tunnels are given,
// and how. It is what OVN's own hosts do: the best kind that both have, at the address that the port
// wants, if it wants one.
func (p *Port) Tunnel(own []Encap) (Encap, error) {
	if p.Chassis == nil {
		return Encap{}, fmt.Errorf("port %s is on no host", p.Name)
	}
	return p.Chassis.tunnel(own, p.encaps)
}

func (c *Chassis) tunnel(own []Encap, wanted []netip.Addr) (Encap, error) {
	for _, kind := range order {
		var found []Encap
		for _, e := range c.Encaps {
			reached := slices.ContainsFunc(own, func(o Encap) bool { return o.Kind == kind && o.IP.Is4() == e.IP.Is4() })
			if e.Kind == kind && reached {
				found = append(found, e)
			}
		}
		if i := slices.IndexFunc(found, func(e Encap) bool { return slices.Contains(wanted, e.IP) }); i >= 0 {
			return found[i], nil
		}
		if len(found) > 0 {
			return found[0], nil
		}
	}
	return Encap{}, fmt.Errorf("chassis %s has no end of tunnels that this host could reach: it has %s, this host %s", c.Name, ends(c.Encaps), ends(own))
}

func ends(encaps []Encap) string {
	var all []string
	for _, e := range encaps {
		all = append(all, string(e.Kind)+" "+e.IP.String())
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

// Limits of the numbers: ovn-architecture(7), "Tunnel Encapsulations", and lib/ovn-util.h. Greater ones
// are multicast groups'.
const (
	mostPort         = 1<<15 - 1
	mostVXLANPort    = 1<<11 - 1
	mostVXLANNetwork = 1<<12 - 1
)

// Wire returns what a tunnel's header has to say so that OVN takes the packet for the port: the VNI, and
// Geneve's options. The ingress is the key of the port of the same network from which the packet comes;
// 0 is none, which OVN uses itself.
//
// For Geneve, the VNI is the network's key, and an option of class 0x0102 and type 0x80 has four bytes: the
// ingress port's key in 15 bits, and the port's in 16. OVN drops packets without it. For VXLAN there
// are no options: the VNI has the port's key in its upper 12 bits and the network's in the lower 12
// (put_encapsulation in controller/physical.c; the manual does not say which is where).
func (p *Port) Wire(kind Kind, ingress uint16) (vni uint32, options []byte, err error) {
	switch {
	case ingress > mostPort:
		return 0, nil, fmt.Errorf("the ingress port's key %d is greater than %d", ingress, mostPort)
	case kind == VXLAN && p.Network.Key > mostVXLANNetwork:
		return 0, nil, fmt.Errorf("network %s has the key %d, and OVN's VXLAN has room for %d", p.Network.Name, p.Network.Key, mostVXLANNetwork)
	case kind == VXLAN && p.Key > mostVXLANPort:
		return 0, nil, fmt.Errorf("port %s has the key %d, and OVN's VXLAN has room for %d", p.Name, p.Key, mostVXLANPort)
	case kind == VXLAN:
		return uint32(p.Key)<<12 | p.Network.Key, nil, nil
	case kind == Geneve:
		options = []byte{0x01, 0x02, 0x80, 1} // class, type with the bit "critical", length in words of four bytes
		return p.Network.Key, binary.BigEndian.AppendUint32(options, uint32(ingress)<<16|uint32(p.Key)), nil
	}
	return 0, nil, fmt.Errorf("tunnels of kind %q are neither geneve nor vxlan", kind)
}
