package translate_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// hosts writes backends that agents deliver to.
func hosts(services []model.Service) string {
	var list []string
	for _, s := range services {
		for _, b := range s.Backends {
			list = append(list, fmt.Sprintf("%s %s@%s %s", b.Name, b.Endpoint(), b.Host, b.State))
		}
	}
	return strings.Join(list, ", ")
}

// Packets of gue, and of ipip to pods, go to pods through their nodes' agents: only to nodes that
// have an agent, and in ipip only to those with a known way to their pods. A director takes all
// services that result.
func TestPodsByAgents(t *testing.T) {
	nodes := []translate.Node{
		{Name: "n1", V4: netip.MustParseAddr("10.0.0.1"), V6: netip.MustParseAddr("fd00::1"), Ready: true, Agent: translate.AgentRuns},
		{Name: "n2", V4: netip.MustParseAddr("10.0.0.2"), Ready: true, Agent: translate.AgentRuns, Excluded: true},
		{Name: "n3", V4: netip.MustParseAddr("10.0.0.3"), Ready: true},
		{Name: "n4", V4: netip.MustParseAddr("10.0.0.4"), Ready: true, Agent: translate.AgentSilent},
		{Name: "n5", Ready: true, Agent: translate.AgentRuns},
	}
	ways := translate.NewWays(map[translate.Place]string{{Node: "n1"}: "", {Node: "n1", Family: pool.IPv6}: "", {Node: "n2"}: "director d: through a tunnel"})
	gue := translate.Options{Mode: model.GUE, Backends: translate.Nodes, SNAT: true}
	ipip := translate.Options{Mode: model.IPIP, Backends: translate.Pods, Ways: ways}
	change := func(o translate.Options, f func(*translate.Options)) translate.Options { f(&o); return o }
	for _, test := range []struct {
		name      string
		options   translate.Options
		endpoints string
		want      string
		problems  []string
	}{
		{"each by its node", gue, "a@n1=10.1.0.1 b@n2=10.1.0.2", "a 10.1.0.1:8080@10.0.0.1 active, b 10.1.0.2:8080@10.0.0.2 active", nil},
		{"of the Service's family where the node has it", gue, "a@n1=fd00:1::1 b@n2=fd00:1::2", "a [fd00:1::1]:8080@fd00::1 active, b [fd00:1::2]:8080@10.0.0.2 active", nil},
		{"in its node's own network", gue, "a@n1=10.0.0.1", "a 10.0.0.1:8080@10.0.0.1 active", nil},
		{"no agent, no such node, no address, no node", gue, "a@n1=10.1.0.1 c@n3=10.1.0.3 x@n9=10.1.0.9 e@n5=10.1.0.5 f@=10.1.0.6", "a 10.1.0.1:8080@10.0.0.1 active",
			[]string{"NoAgent: pods of n3 get nothing: no weir agent runs there, which delivers packets in mode gue", "NoAgent: pods of n9 get nothing: there is no such node",
				"NoAgent: pods of n5 get nothing: it has no address", "NoAgent: pods of 10.1.0.6 get nothing: no EndpointSlice says on which node it is"}},
		{"an agent that is silent", gue, "a@n1=10.1.0.1 d@n4=10.1.0.4", "a 10.1.0.1:8080@10.0.0.1 active, d 10.1.0.4:8080@10.0.0.4 draining", nil},
		{"nobody else", gue, "a@n1=10.1.0.1~ d@n4=10.1.0.4", "a 10.1.0.1:8080@10.0.0.1 draining, d 10.1.0.4:8080@10.0.0.4 active", nil},
		{"those that serve nobody keep what they have", gue, "a@n1=10.1.0.1 b@n2=10.1.0.2! c@n2=10.1.0.3x", "a 10.1.0.1:8080@10.0.0.1 active, b 10.1.0.2:8080@10.0.0.2 draining, c 10.1.0.3:8080@10.0.0.2 draining", nil},
		{"but are not used instead of others", gue, "b@n2=10.1.0.2! c@n2=10.1.0.3x", "", []string{"NoBackends: nothing serves"}},
		{"in ipip where a way is known", ipip, "a@n1=10.1.0.1 b@n2=10.1.0.2 d@n4=10.1.0.4", "a 10.1.0.1:8080@10.0.0.1 active",
			[]string{"NoWay: pods of n2 get nothing: director d: through a tunnel; mode gue needs no way to pods", "NoWay: pods of n4 get nothing: directors have not looked yet"}},
		{"an address twice", ipip, "a@n1=10.1.0.1 b@n1=10.1.0.1:81", "b 10.1.0.1:81@10.0.0.1 active", []string{"NoWay: pods of 10.1.0.1:8080 get nothing: their address serves at another port already"}},
		{"directors that agents do not know of", change(gue, func(o *translate.Options) { o.NoAgents = "these are alone" }), "a@n1=10.1.0.1", "", []string{"Unsupported: mode gue to pods needs weir agent on their nodes, and these are alone"}},
		{"a policy that is not to be had", change(gue, func(o *translate.Options) { o.Policy = model.LeastConn }), "a@n1=10.1.0.1", "a 10.1.0.1:8080@10.0.0.1 active", []string{"Unsupported: policy least-conn of its ServicePolicy places a connection on any pod"}},
	} {
		var list []*discoveryv1.EndpointSlice
		for _, e := range strings.Fields(test.endpoints) {
			family, number := discoveryv1.AddressTypeIPv4, int32(8080)
			if strings.Contains(e, "::") {
				family = discoveryv1.AddressTypeIPv6
			} else if at, found := strings.CutSuffix(e, ":81"); found {
				e, number = at, 81
			}
			if one := slice(family, "http", number, e); strings.Contains(e, "@=") {
				one.Endpoints[0].NodeName = nil
				list = append(list, one)
			} else {
				list = append(list, one)
			}
		}
		vip := netip.MustParseAddr("203.0.113.1")
		s := web()
		if strings.Contains(test.endpoints, "::") {
			vip = netip.MustParseAddr("2001:db8::1")
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
		}
		services, problems := translate.Services(test.options, s, list, []netip.Addr{vip}, translate.NewCluster(nodes))
		if got := hosts(services); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		var told []string
		for _, p := range problems {
			told = append(told, string(p.Reason)+": "+p.Message)
		}
		for _, want := range test.problems {
			if !strings.Contains(strings.Join(told, "\n"), want) {
				t.Errorf("%s: the problems are %q, want %q", test.name, told, want)
			}
		}
		if len(test.problems) == 0 && len(told) > 0 {
			t.Errorf("%s: there are problems: %q", test.name, told)
		}
		c := model.Config{Services: services, Director: model.Director{Limits: model.Limits{Services: 9, Backends: 99, RingMemory: 1 << 30, Fragments: 9}}}
		c.SetDefaults()
		if err := c.Validate(); err != nil {
			t.Errorf("%s: a director refuses it: %v", test.name, err)
		}
	}
}

// In gue, where directors remember no connections, rows name pods that may still have connections
// for longer, unless a drain is given.
func TestDrainInGUE(t *testing.T) {
	for _, test := range []struct{ drain, most, want time.Duration }{
		{0, 0, 10 * time.Minute}, {time.Minute, 0, time.Minute}, {0, 5 * time.Minute, 5 * time.Minute}, {0, time.Hour, 10 * time.Minute},
	} {
		o, _ := translate.Options{Mode: model.GUE, Drain: model.Duration(test.drain), MaxDrain: model.Duration(test.most)}.InGUE()
		if o.Drain != model.Duration(test.want) {
			t.Errorf("with a drain of %v and %v at most rows name for %v, want %v", test.drain, test.most, time.Duration(o.Drain), test.want)
		}
	}
	if o, _ := (translate.Options{Mode: model.IPIP}).InGUE(); o.Drain != 0 {
		t.Errorf("in ipip drain is %v", o.Drain)
	}
}

// To which pods directors have to know the way.
func TestAsks(t *testing.T) {
	list := []*discoveryv1.EndpointSlice{slice(discoveryv1.AddressTypeIPv4, "http", 8080, "a@n1=10.1.0.1", "b@n1=10.1.0.2!", "c@n2=10.1.0.3"), slice(discoveryv1.AddressTypeIPv6, "http", 8080, "a@n1=fd00::1")}
	s := web()
	s.Annotations = map[string]string{translate.AnnotationMode: "ipip"}
	o := translate.Options{Mode: model.NAT, Backends: translate.Pods}
	if got := fmt.Sprint(o.Asks(s, list)); got != "map[{n1 IPv4}:[10.1.0.1:8080] {n1 IPv6}:[[fd00::1]:8080] {n2 IPv4}:[10.1.0.3:8080]]" {
		t.Errorf("asked are %s", got)
	}
	for _, mode := range []string{"gue", "nat"} {
		s.Annotations[translate.AnnotationMode] = mode
		if got := o.Asks(s, list); got != nil {
			t.Errorf("in mode %s asked are %v", mode, got)
		}
	}
}
