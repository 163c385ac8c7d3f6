package translate

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/v1alpha1"
)

// BGPPeer is a BGPPeer that was read.
type BGPPeer struct {
	Of       *v1alpha1.BGPPeer
	Neighbor model.BGPNeighbor // without its password's file
	nodes    labels.Selector   // nil: any
}

// ReadBGPPeer returns what a BGPPeer becomes in a director's file, or what is wrong with it that
// its schema cannot refuse.
func ReadBGPPeer(p *v1alpha1.BGPPeer) (*BGPPeer, error) {
	read := &BGPPeer{Of: p}
	n, spec := &read.Neighbor, &p.Spec
	var err error
	if read.nodes, err = selector("spec.nodeSelector", spec.NodeSelector); err != nil {
		return nil, err
	}
	if n.Address, err = netip.ParseAddr(spec.Address); err != nil {
		return nil, fmt.Errorf("spec.address: %w", err)
	}
	n.ASN, n.Port, n.TTL, n.TTLSecurity, n.GracefulRestart = uint32(spec.ASN), uint16(spec.Port), uint8(spec.TTL), uint8(spec.TTLSecurity), spec.GracefulRestart
	if n.Port == 179 {
		n.Port = 0 // the file's default
	}
	durations := []struct {
		field string
		given *v1alpha1.Duration
		into  *model.Duration
	}{{"holdTime", spec.HoldTime, &n.HoldTime}, {"restartTime", spec.RestartTime, &n.RestartTime}}
	if spec.BFD != nil {
		n.BFD = &model.BGPNeighborBFD{}
		n.BFD.Multiplier, n.BFD.Multihop = uint8(spec.BFD.Multiplier), spec.BFD.Multihop
		durations = append(durations, struct {
			field string
			given *v1alpha1.Duration
			into  *model.Duration
		}{"bfd.interval", spec.BFD.Interval, &n.BFD.Interval})
	}
	for _, d := range durations {
		if d.given == nil {
			continue
		}
		if err := d.into.UnmarshalText([]byte(*d.given)); err != nil {
			return nil, fmt.Errorf("spec.%s: %w", d.field, err)
		}
	}
	for _, f := range spec.Families {
		n.Families = append(n.Families, model.BGPFamily(f))
	}
	for i, text := range spec.Communities {
		var c model.Community
		if err := c.UnmarshalText([]byte(text)); err != nil {
			return nil, fmt.Errorf("spec.communities[%d]: %w", i, err)
		}
		n.Attributes.Communities = append(n.Attributes.Communities, c)
	}
	if spec.LocalPref != nil {
		pref := uint32(*spec.LocalPref)
		n.Attributes.LocalPref = &pref
	}
	return read, nil
}

// Serves reports whether the group's directors speak with the peer.
func (p *BGPPeer) Serves(g *v1alpha1.DirectorGroup) bool {
	return g.Spec.BGP != nil && (len(p.Of.Spec.Groups) == 0 || slices.Contains(p.Of.Spec.Groups, g.Name))
}

// Selects reports whether a node with these labels speaks with the peer.
func (p *BGPPeer) Selects(node map[string]string) bool {
	return p.nodes == nil || p.nodes.Matches(labels.Set(node))
}

// Valid says what is wrong with the peer for directors of an AS, by the rules of a director's file.
func (p *BGPPeer) Valid(asn int64) error {
	c := model.Config{Director: model.Director{Interfaces: []string{"eth0"}}}
	n := p.Neighbor
	c.BGP = model.BGP{ASN: uint32(asn), RouterID: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Neighbors: []model.BGPNeighbor{n}}
	c.SetDefaults()
	return c.Validate()
}
