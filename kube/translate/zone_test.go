package translate_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// hinted gives endpoints the zones that they are meant for, in their order; empty: none.
func hinted(s *discoveryv1.EndpointSlice, zones ...string) *discoveryv1.EndpointSlice {
	for i, zone := range zones {
		if zone != "" {
			s.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		}
	}
	return s
}

// backends writes the backends of the first service, in one line.
func backends(services []model.Service) string {
	if len(services) == 0 {
		return ""
	}
	var list []string
	for _, b := range services[0].Backends {
		list = append(list, fmt.Sprintf("%s %d %s", b.Name, b.Weight, b.State))
	}
	return strings.Join(list, ", ")
}

// Directors in a zone keep to endpoints that are meant for it, and to nodes that are in it, by the
// rules of kube-proxy.
func TestZones(t *testing.T) {
	const v4 = discoveryv1.AddressTypeIPv4
	three := func(zones ...string) []*discoveryv1.EndpointSlice {
		return []*discoveryv1.EndpointSlice{hinted(slice(v4, "http", 8080, "a@n1=10.1.0.1", "b@n2=10.1.0.2", "c@n2=10.1.0.3"), zones...)}
	}
	zoned := slices.Clone(nodes[:3])
	zoned[0].Zone, zoned[1].Zone, zoned[2].Zone = "east", "west", "east"
	for _, test := range []struct {
		name    string
		zone    string
		slices  []*discoveryv1.EndpointSlice
		to      translate.Target
		service *corev1.Service
		want    string
	}{
		{"meant for the zone: the others keep what they have", "east", three("east", "west", "west"), translate.Pods, web(), "a 100 active, b 100 draining, c 100 draining"},
		{"directors that are nowhere", "", three("east", "west", "west"), translate.Pods, web(), "a 100 active, b 100 active, c 100 active"},
		{"nobody is meant for the zone", "north", three("east", "west", "west"), translate.Pods, web(), "a 100 active, b 100 active, c 100 active"},
		{"one is meant for nobody", "east", three("east", "west", ""), translate.Pods, web(), "a 100 active, b 100 active, c 100 active"},
		{"the last of the zone terminates", "east", []*discoveryv1.EndpointSlice{hinted(slice(v4, "http", 8080, "a@n1=10.1.0.1~", "b@n2=10.1.0.2"), "east", "west")}, translate.Pods, web(), "a 100 draining, b 100 active"},
		{"one that terminates is meant for nobody any more", "east", []*discoveryv1.EndpointSlice{hinted(slice(v4, "http", 8080, "a@n1=10.1.0.1", "b@n2=10.1.0.2~"), "east", "")}, translate.Pods, web(), "a 100 active, b 100 draining"},
		{"nodes of the zone", "west", three("east", "west", "west"), translate.Nodes, web(), "n1 100 draining, n2 100 active, n3 100 draining"},
		{"nodes of the zone, one of which is down", "east", three("east", "west", "west"), translate.Nodes, web(), "n1 100 active, n2 100 draining, n3 100 down"},
		{"no node is in the zone", "north", three("north", "west", "west"), translate.Nodes, web(), "n1 100 active, n2 100 active, n3 100 down"},
		{"nodes, while nothing is meant for a zone", "west", three(), translate.Nodes, web(), "n1 100 active, n2 100 active, n3 100 down"},
		{"Local: nodes whose pods are meant for the zone", "west", three("east", "west", "west"), translate.Nodes, web(local), "n1 100 draining, n2 200 active"},
	} {
		o := translate.Options{Mode: model.NAT, SNAT: false, Backends: test.to, Zone: test.zone}
		services, _ := translate.Services(o, test.service, test.slices, []netip.Addr{netip.MustParseAddr("203.0.113.1")}, translate.NewCluster(zoned))
		if got := backends(services); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// Pods and nodes have the weights of their labels, and an invalid weight is reported.
func TestWeights(t *testing.T) {
	three := slice(discoveryv1.AddressTypeIPv4, "http", 8080, "a@n1=10.1.0.1", "b@n1=10.1.0.2", "c@n2=10.1.0.3")
	labels := func(of map[string]string) *discoveryv1.EndpointSlice {
		return translate.WithWeights(three, func(pod string) (string, bool) { weight, is := of[pod]; return weight, is })
	}
	byHand := *three
	byHand.Annotations = map[string]string{translate.AnnotationWeights: "10.1.0.2=7, c=8"}
	weighed := slices.Clone(nodes[:2])
	weighed[0].Weight = "300"
	wrong := slices.Clone(weighed)
	wrong[1].Weight = "much"
	for _, test := range []struct {
		name    string
		slice   *discoveryv1.EndpointSlice
		to      translate.Target
		nodes   []translate.Node
		service *corev1.Service
		want    string
		problem string
	}{
		{"pods", labels(map[string]string{"a": "10", "c": "0", "z": "5"}), translate.Pods, nil, web(), "a 10 active, b 100 active, c 0 active", ""},
		{"what is no weight", labels(map[string]string{"a": "65536"}), translate.Pods, nil, web(), "a 100 active, b 100 active, c 100 active", `weir.io/weight of a: weight "65536" is not a number from 0 to 65535`},
		{"of a slice that somebody else writes", &byHand, translate.Pods, nil, web(), "a 100 active, b 7 active, c 8 active", ""},
		{"both: the Pod's own", translate.WithWeights(&byHand, func(pod string) (string, bool) { return "9", pod == "c" }), translate.Pods, nil, web(), "a 100 active, b 7 active, c 9 active", ""},
		{"Local: nodes by their pods", labels(map[string]string{"a": "10"}), translate.Nodes, weighed, web(local), "n1 110 active, n2 100 active", ""},
		{"nodes", three, translate.Nodes, weighed, web(), "n1 300 active, n2 100 active", ""},
		{"what is no node's weight", three, translate.Nodes, wrong, web(), "n1 300 active, n2 100 active", `label weir.io/weight of node n2: weight "much"`},
	} {
		o := translate.Options{Mode: model.NAT, SNAT: false, Backends: test.to}
		services, problems := translate.Services(o, test.service, []*discoveryv1.EndpointSlice{test.slice}, []netip.Addr{netip.MustParseAddr("203.0.113.1")}, translate.NewCluster(test.nodes))
		if got := backends(services); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		if all := fmt.Sprint(problems); (test.problem == "") != (len(problems) == 0) || !strings.Contains(all, test.problem) {
			t.Errorf("%s has the problems %s, want %q", test.name, all, test.problem)
		}
	}
	if labels(nil) != three || three.Annotations != nil {
		t.Error("a slice of Pods without weights is another one, or was changed")
	}
}

// One Service may have other backends than the rest, if such backends are possible.
func TestBackendsOfOneService(t *testing.T) {
	three := []*discoveryv1.EndpointSlice{slice(discoveryv1.AddressTypeIPv4, "http", 8080, "a@n1=10.1.0.1")}
	noNodePorts := func(s *corev1.ServiceSpec) { s.Ports[0].NodePort = 0 }
	toNodes := translate.Options{Mode: model.NAT, SNAT: true, Backends: translate.Nodes, NodeHealth: true}
	link, gue := translate.Options{Mode: model.L2DSR, Backends: translate.Nodes}, translate.Options{Mode: model.GUE, Backends: translate.Nodes}
	for _, test := range []struct {
		name       string
		options    translate.Options
		annotation string
		service    *corev1.Service
		want       string
		health     bool
		problem    string
	}{
		{"pods, without node ports", toNodes, "pods", web(noNodePorts), "a 100 active", false, ""},
		{"nodes, without node ports", toNodes, "nodes", web(noNodePorts), "", false, "port 80 has no node port, by which mode nat reaches nodes: set spec.allocateLoadBalancerNodePorts to true; or, where directors have routes to pods, annotate it with weir.io/backends: pods"},
		{"nodes, with node ports", toNodes, "nodes", web(), "n1 100 active, n2 100 active", true, ""},
		{"pods on another link", link, "pods", web(), "n1 100 active, n2 100 active", false, "annotation weir.io/backends: mode l2dsr reaches nodes only"},
		{"nodes in gue", gue, "nodes", web(), "", false, "annotation weir.io/backends: mode gue reaches pods only; it is forwarded in mode gue to pods"},
		{"what there is not", toNodes, "hosts", web(), "n1 100 active, n2 100 active", true, `annotation weir.io/backends: "hosts" is not a target (nodes or pods); it is forwarded in mode nat to nodes`},
	} {
		test.service.Annotations = map[string]string{translate.AnnotationBackends: test.annotation}
		services, problems := translate.Services(test.options, test.service, three, []netip.Addr{netip.MustParseAddr("203.0.113.1")}, translate.NewCluster(nodes[:2]))
		if got := backends(services); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		if len(services) > 0 && (services[0].Health != nil) != test.health {
			t.Errorf("%s: it is checked by %+v", test.name, services[0].Health)
		}
		if all := fmt.Sprint(problems); (test.problem == "") != (len(problems) == 0) || !strings.Contains(all, test.problem) {
			t.Errorf("%s has the problems %s, want %q", test.name, all, test.problem)
		}
	}
}

// A pod that publishes its address before it is ready is a backend; names are not; every backend
// has the MTU of the paths.
func TestEndpointsOfAllKinds(t *testing.T) {
	early := slice(discoveryv1.AddressTypeIPv4, "http", 8080, "a@n1=10.1.0.1")
	early.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(true), Serving: new(false), Terminating: new(false)} // as with publishNotReadyAddresses
	names := slice(discoveryv1.AddressTypeFQDN, "http", 8080, "b@n1=web.example.org")
	o := translate.Options{Mode: model.NAT, Backends: translate.Pods, MTU: 1450}
	services, problems := translate.Services(o, web(), []*discoveryv1.EndpointSlice{early, names}, []netip.Addr{netip.MustParseAddr("203.0.113.1")}, translate.NewCluster(nil))
	if got := backends(services); got != "a 100 active" || services[0].Backends[0].MTU != 1450 || len(problems) > 0 {
		t.Errorf("backends %s, %+v, problems %v", got, services[0].Backends, problems)
	}
}

// Directors that are chosen from the nodes of one zone are in it.
func TestZoneOfGroup(t *testing.T) {
	base := translate.Options{Mode: model.NAT, Backends: translate.Nodes, Zone: "east"}
	for selector, want := range map[string]string{`{"topology.kubernetes.io/zone": "west", "role": "edge"}`: "west", `{"role": "edge"}`: "east"} {
		g := &v1alpha1.DirectorGroup{Spec: *fromJSON[v1alpha1.DirectorGroupSpec](t, `{"interfaces": ["eth0"], "notice": "1s", "nodeSelector": `+selector+`}`)}
		read, err := translate.ReadDirectorGroup(g, base)
		if err != nil {
			t.Fatal(err)
		}
		if read.Options.Zone != want {
			t.Errorf("directors on nodes with %s are in zone %q, want %q", selector, read.Options.Zone, want)
		}
	}
}

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
