package node

import (
	"fmt"
	"hash/fnv"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// facts are the facts about a node, from its object, or a pod, from its environment.
type facts struct {
	Name     string
	V4, V6   netip.Addr // towards backends and routers; the zero one: it has none
	Labels   map[string]string
	RouterID netip.Addr // of BGP
	Unfit    string     // why it should not be a director; empty: it may be one
	Overlay  overlay    // that pods' nodes answer by; the zero one: there is none
	Pod      bool       // it is a pod: packets come by the detour, and native XDP's would be lost in the pod's veth
}

func (f *facts) addresses() (list []netip.Addr) {
	for _, a := range []netip.Addr{f.V4, f.V6} {
		if a.IsValid() {
			list = append(list, a)
		}
	}
	return list
}

// AnnotationRouterID is where a Node says which BGP identifier its director has.
const AnnotationRouterID = "weir.io/router-id"

// factsOf returns what a node is, and whether it may be a director of a group.
func factsOf(name string, n *corev1.Node, g *v1alpha1.DirectorGroup) facts {
	f := facts{Name: name, RouterID: routerID(name)}
	if n == nil {
		f.Unfit = "the cluster has no such node"
		return f
	}
	of := translate.NodeOf(n)
	f.V4, f.V6, f.Labels = of.V4, of.V6, n.Labels
	if f.V4.IsValid() {
		f.RouterID = f.V4
	}
	if id, err := netip.ParseAddr(n.Annotations[AnnotationRouterID]); err == nil {
		f.RouterID = id
	}
	switch {
	case g != nil && !labels.SelectorFromSet(g.Spec.NodeSelector).Matches(labels.Set(n.Labels)):
		f.Unfit = fmt.Sprintf("it does not have the labels of DirectorGroup %s", g.Name)
	case n.Spec.Unschedulable:
		f.Unfit = "it is cordoned"
	case of.Leaving:
		f.Unfit = "it is about to be removed"
	case !of.Ready:
		f.Unfit = "it is not ready"
	}
	return f
}

// routerID makes an almost unique ID from a name, for nodes without an IPv4 address.
func routerID(name string) netip.Addr {
	h := fnv.New32a()
	h.Write([]byte(name)) // it never fails
	x := h.Sum32()
	return netip.AddrFrom4([4]byte{1 + byte(x>>24)%223, byte(x >> 16), byte(x >> 8), 1 + byte(x)%254})
}
