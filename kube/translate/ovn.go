package translate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/v1alpha1"
)

// OVN is what a group's director on a node knows of OVN.
type OVN struct {
	model.OVN        // without the files of TLS
	Secure    bool   // it needs these files
	Secret    string // that has what they are made of; empty: none is named
}

// OVNOf returns what a group's director on a node knows of OVN; without endpoints: nothing.
func OVNOf(g *v1alpha1.DirectorGroup, node string) (o OVN) {
	of := g.Spec.OVN
	if of == nil {
		return o
	}
	o.Endpoints, o.LeaderOnly, o.Chassis = of.Endpoints, of.LeaderOnly, chassisOf(node, "")
	o.Secure = slices.ContainsFunc(of.Endpoints, func(e string) bool { return strings.HasPrefix(e, "ssl:") })
	if o.Secure {
		o.Secret = of.CertificateSecret
	}
	for i := range of.Directors {
		if d := &of.Directors[i]; d.Node == node {
			o.Chassis = chassisOf(node, d.Chassis)
			o.Secret = cmp.Or(d.CertificateSecret, o.Secret)
		}
	}
	return o
}

// chassisOf is the name of a node's director among OVN's hosts.
func chassisOf(node, given string) string { return cmp.Or(given, "weir-"+node) }

// ovnOf returns what any of a group's directors knows of OVN, for what its rules say of it, or what is wrong with what
// some of them know.
func ovnOf(g *v1alpha1.DirectorGroup) (o model.OVN, err error) {
	of := g.Spec.OVN
	if of == nil {
		return o, nil
	}
	if g.Spec.VTEP == nil {
		return o, errors.New("spec.ovn: needs vtep, where OVN's hosts send to")
	}
	for i, e := range of.Endpoints {
		if !strings.HasPrefix(e, "tcp:") && !strings.HasPrefix(e, "ssl:") { // no other is on all nodes
			return o, fmt.Errorf("spec.ovn.endpoints[%d]: %q is not tcp:HOST:PORT or ssl:HOST:PORT", i, e)
		}
	}
	each := OVNOf(g, "any")
	if o = each.OVN; each.Secure {
		o.CA, o.Cert, o.Key = "/ca", "/cert", "/key" // each node has its own
	}
	named := map[string]string{}
	for i := range of.Directors {
		d := &of.Directors[i]
		chassis := chassisOf(d.Node, d.Chassis)
		if other, taken := named[chassis]; taken {
			return o, fmt.Errorf("spec.ovn.directors[%d].chassis: %q is already that of node %s", i, chassis, other)
		}
		named[chassis] = d.Node
		if each.Secure && of.CertificateSecret == "" && d.CertificateSecret == "" {
			return o, fmt.Errorf("spec.ovn.directors[%d].certificateSecret: is required for ssl:, or spec.ovn.certificateSecret", i)
		}
	}
	return o, nil
}
