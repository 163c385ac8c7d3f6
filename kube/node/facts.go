package node

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

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
