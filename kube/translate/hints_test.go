package translate_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
)

// If any node could hand a packet to any pod, pods that are meant for nodes have equal shares, and
// nodes without such a pod get nothing. If the backends are pods, such hints mean nothing.
func TestNodeHints(t *testing.T) {
	const v4 = discoveryv1.AddressTypeIPv4
	four := func(nodes ...string) []*discoveryv1.EndpointSlice {
		s := slice(v4, "http", 8080, "a@n1=10.1.0.1", "b@n2=10.1.0.2", "c@n2=10.1.0.3", "d@n3=10.1.0.4~")
		for i, names := range nodes {
			for name := range strings.SplitSeq(names, "+") {
				if s.Endpoints[i].Hints == nil {
					s.Endpoints[i].Hints = &discoveryv1.EndpointHints{}
				}
				s.Endpoints[i].Hints.ForNodes = append(s.Endpoints[i].Hints.ForNodes, discoveryv1.ForNode{Name: name})
			}
		}
		return []*discoveryv1.EndpointSlice{s}
	}
	zones := func(list []*discoveryv1.EndpointSlice, zones ...string) []*discoveryv1.EndpointSlice {
		for i, zone := range zones {
			list[0].Endpoints[i].Hints.ForZones = []discoveryv1.ForZone{{Name: zone}}
		}
		return list
	}
	three := slices.Clone(nodes[:3])
	three[0].Zone, three[1].Zone, three[2].Zone, three[2].Ready = "east", "west", "east", true
	without := slices.Clone(three)
	without[0].Excluded, without[1].Leaving = true, true
	for name, test := range map[string]struct {
		slices  []*discoveryv1.EndpointSlice
		zone    string
		nodes   []translate.Node
		to      translate.Target
		service *corev1.Service
		want    string
	}{
		"each pod for its node":                     {four("n1", "n2", "n2"), "", three, translate.Nodes, web(), "n1 100 active, n2 200 active, n3 100 draining"},
		"for two nodes":                             {four("n1+n3", "n2", "n2"), "", three, translate.Nodes, web(), "n1 50 active, n2 200 active, n3 50 active"},
		"one for no node: all count":                {four("n1", "n2"), "", three, translate.Nodes, web(), "n1 100 active, n2 100 active, n3 100 active"},
		"no such node can be used: all that can do": {four("n1", "n2", "n2"), "", without, translate.Nodes, web(), "n2 100 draining, n3 100 active"},
		"Local: nodes by their own pods":            {four("n1", "n1", "n1"), "", three, translate.Nodes, web(local), "n1 100 active, n2 200 active, n3 100 draining"},
		"to pods":                                   {four("n1", "n1", "n1"), "", three, translate.Pods, web(), "a 100 active, b 100 active, c 100 active, d 100 draining"},
		"with zones: the nodes of the directors'":   {zones(four("n1", "n2", "n2"), "east", "west", "west"), "west", three, translate.Nodes, web(), "n1 100 draining, n2 200 active, n3 100 draining"},
		"with zones, and directors in none":         {zones(four("n1", "n2", "n2"), "east", "west", "west"), "", three, translate.Nodes, web(), "n1 100 active, n2 200 active, n3 100 draining"},
	} {
		o := translate.Options{Mode: model.NAT, SNAT: false, Backends: test.to, Zone: test.zone}
		services, _ := translate.Services(o, test.service, test.slices, []netip.Addr{netip.MustParseAddr("203.0.113.1")}, translate.NewCluster(test.nodes))
		if got := backends(services); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}
