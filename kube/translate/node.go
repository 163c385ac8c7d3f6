package translate

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/pool"
)

// Node is what matters to Services about a node.
type Node struct {
	Name string
	// V4 and V6 are its addresses towards directors; the zero value: it has none.
	V4, V6 netip.Addr
	// Excluded says that load balancers must not send it anything.
	Excluded bool
	// Leaving says that it is about to be removed: it gets no new connections.
	Leaving bool
	// Agent is whether weir agent delivers packets to its pods.
	Agent Agent
	// Ready is what the kubelet says, or the controller that misses the kubelet.
	Ready bool
	Zone  string // the node's zone; empty: unknown
	// Sources are the source prefixes of its packets and its pods', separated by spaces.
	Sources string
	// Weight is its share among nodes that any pod can be reached through, as its label says;
	// empty: the usual weight.
	Weight string
}

// Agent is what is known about a node's weir agent.
type Agent int

// The states of an agent.
const (
	AgentNone   Agent = iota // the node has none
	AgentSilent              // nothing was heard of it lately: it goes on with what it knows
	AgentRuns
)

// toBeDeleted is the taint with which the cluster autoscaler marks a node that it drains.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// NodeOf returns what matters about a node. A cordoned node is like any other: its pods go on.
func NodeOf(n *corev1.Node) Node {
	node := Node{Name: n.Name, Leaving: n.DeletionTimestamp != nil, Zone: n.Labels[corev1.LabelTopologyZone], Weight: n.Labels[LabelWeight]}
	_, node.Excluded = n.Labels[corev1.LabelNodeExcludeBalancers]
	for _, taint := range n.Spec.Taints {
		node.Leaving = node.Leaving || taint.Key == toBeDeleted
	}
	for _, c := range n.Status.Conditions {
		node.Ready = node.Ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	node.Sources = strings.Join(sourcesOf(n), " ")
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, given := range n.Status.Addresses {
			a, err := netip.ParseAddr(given.Address)
			if err != nil || given.Type != kind {
				continue
			}
			a = a.Unmap()
			if to := node.address(pool.FamilyOf(a)); !to.IsValid() {
				*to = a
			}
		}
	}
	return node
}

func (n *Node) address(family pool.Family) *netip.Addr {
	if family == pool.IPv6 {
		return &n.V6
	}
	return &n.V4
}

// Cluster has the nodes that Services can be reached at.
type Cluster struct {
	nodes    []Node // in the order of their names
	byName   map[string]int
	all      map[string]Node // also nodes that load balancers do not use
	dark     bool            // no node is ready
	weights  map[string]uint16
	problems []Problem // with the nodes' weights
}

// NewCluster returns a cluster of nodes, which must be in the order of their names.
func NewCluster(nodes []Node) *Cluster {
	c := &Cluster{byName: map[string]int{}, all: map[string]Node{}, dark: true, weights: map[string]uint16{}}
	for _, n := range nodes {
		c.all[n.Name] = n
		if !n.Excluded {
			c.byName[n.Name] = len(c.nodes)
			c.nodes = append(c.nodes, n)
			c.dark = c.dark && !n.Ready
			c.weights[n.Name] = usualWeight
			if n.Weight == "" {
				continue
			}
			weight, err := parseWeight(n.Weight)
			if c.weights[n.Name] = weight; err != nil {
				c.problems = append(c.problems, problem(Unsupported, "label %s of node %s: %v", LabelWeight, n.Name, err)...)
			}
		}
	}
	return c
}

// state returns the state of a node that any pod can be reached through. A node that is not ready
// keeps its slots, so that nothing moves again when it is back. If no node is ready, the controller
// is more likely the one that is cut off: all are used.
func (c *Cluster) state(n Node) model.BackendState {
	switch {
	case n.Leaving:
		return model.Draining
	case !n.Ready && !c.dark:
		return model.Down
	}
	return model.Active
}

// address returns the address at which a node is reached. In tunnels and frames a packet of one
// family can travel to an address of the other.
func (c *Cluster) address(n Node, family pool.Family, mode model.Mode) (netip.Addr, bool) {
	a := *n.address(family)
	if !a.IsValid() && mode != model.NAT {
		a = *n.address(!family)
	}
	return a, a.IsValid()
}
