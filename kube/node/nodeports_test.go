package node

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/v1alpha1"
)

// withNodePorts is a Service with three ports, two of which have node ports, in both families.
func withNodePorts() decoded {
	d := decoded{group: "edge", of: &v1alpha1.CompiledService{Name: "shop/web", Revision: 7, NodePorts: []v1alpha1.ServiceNodePort{
		{Protocol: "tcp", Port: 80, NodePort: 30080}, {Protocol: "udp", Port: 80, NodePort: 30080}}}}
	for i, text := range []string{"80 tcp 203.0.113.1", "80 udp 203.0.113.1", "443 tcp 203.0.113.1", "80 tcp 2001:db8:1::1"} {
		var s model.Service
		var port uint16
		var protocol, vip string
		if _, err := fmt.Sscan(text, &port, &protocol, &vip); err != nil {
			panic(err)
		}
		s.Name, s.VIP, s.Mode, s.SourceRanges = fmt.Sprintf("shop/web/%d", i), netip.MustParseAddr(vip), model.GUE, []netip.Prefix{}
		s.Port, s.Protocol = model.PortRange{First: port, Last: port}, model.TCP
		if protocol == "udp" {
			s.Protocol = model.UDP
		}
		b := model.NewBackend()
		b.Name, b.Address, b.Port, b.Host = "web-0", netip.MustParseAddr("10.244.1.5"), 8080, netip.MustParseAddr("10.0.0.7")
		if s.VIP.Is6() {
			b.Address = netip.MustParseAddr("fd00:244:1::5")
		}
		s.Backends = []model.Backend{b}
		d.documents = append(d.documents, model.Document{Service: s, Log: model.Log{Generations: []model.Generation{{Number: uint64(i + 1), Slots: 53}}}})
	}
	return d
}

func textOf(documents []model.Document) string {
	var list []string
	for _, d := range documents {
		s := &d.Service
		list = append(list, fmt.Sprintf("%s=%s %s:%s %s log %d kernel %v", s.Name, s.Protocol, s.VIP, s.Port, s.Backends[0].Endpoint(), d.Log.Generations[0].Number, s.KernelSources))
	}
	return strings.Join(list, "\n")
}

// A director has the ports that have node ports at its own addresses, each with the backends and
// the history of its family, and leaves nodes and pods to the kernel there.
func TestNodePortsOfDirector(t *testing.T) {
	d := withNodePorts()
	s := sets{decoded: map[string]decoded{d.of.Name: d, "shop/none": {of: &v1alpha1.CompiledService{Name: "shop/none"}, documents: d.documents}}}
	is, documents := s.nodePorts([]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")})
	want := `shop/web/0@10.0.0.2:30080=tcp 10.0.0.2:30080 10.244.1.5:8080 log 1 kernel true
shop/web/1@10.0.0.2:30080=udp 10.0.0.2:30080 10.244.1.5:8080 log 2 kernel true
shop/web/3@[fd00::2]:30080=tcp fd00::2:30080 [fd00:244:1::5]:8080 log 4 kernel true`
	if got := textOf(documents); got != want {
		t.Errorf("it has\n%s\nwant\n%s", got, want)
	}
	if d.documents[0].Service.KernelSources || d.documents[0].Service.Port.First != 80 {
		t.Errorf("the Service itself is %+v", d.documents[0].Service)
	}
	if got := fmt.Sprint(s.vips()); got != "[203.0.113.1 2001:db8:1::1]" {
		t.Errorf("hosts on the link may be told of %s", got)
	}
	// The key depends on the revisions of the Services.
	later := withNodePorts()
	later.of.Revision++
	s.decoded[d.of.Name] = later
	if again, _ := s.nodePorts([]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}); again == is {
		t.Error("another revision is the same set")
	}
	// Where nobody serves, kube-proxy answers.
	later.documents[0].Service.Backends = nil
	if _, documents := s.nodePorts([]netip.Addr{netip.MustParseAddr("10.0.0.2")}); len(documents) != 1 || documents[0].Service.Protocol != model.UDP {
		t.Errorf("of a port that nothing serves it has\n%s", textOf(documents))
	}
}

// An agent knows its pods by the node ports of each director of their Service's group.
func TestNodePortsOfAgent(t *testing.T) {
	f := factsOf("a", nodeOf(), nil)
	now := time.Now()
	known := nodePorts{}
	directors := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("fd00::3")}
	ports := func(d *decoded) []model.Document { return d.atDirectors(known.of(d, now), directors) }
	text, err := agentFile([]decoded{withNodePorts()}, ports, []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")}, &f, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("f", text)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, s := range c.Services {
		list = append(list, fmt.Sprintf("%s:%s", s.VIP, s.Port))
	}
	if got, want := strings.Join(list, " "), "203.0.113.1:80 203.0.113.1:80 203.0.113.1:443 2001:db8:1::1:80 10.0.0.2:30080 10.0.0.2:30080 10.0.0.3:30080 10.0.0.3:30080 fd00::3:30080"; got != want {
		t.Errorf("the agent knows\n%s\nwant\n%s", got, want)
	}
	// When directors take them no more the agent knows them for a while.
	gone := withNodePorts()
	gone.of.NodePorts = nil
	for after, want := range map[time.Duration]int{portsLinger - 1: 5, portsLinger: 0} {
		known := nodePorts{}
		first := withNodePorts()
		known.of(&first, now)
		if got := gone.atDirectors(known.of(&gone, now.Add(after)), directors); len(got) != want || want == 0 && len(known) > 0 {
			t.Errorf("after %v the agent knows\n%s", after, textOf(got))
		}
	}
}

// Why a node has none: what is wrong with it, or that they are in the way of Services' addresses.
func TestNoNodePorts(t *testing.T) {
	f, none := factsOf("a", nodeOf(), nil), &facts{}
	for _, test := range []struct {
		node  *Node
		facts *facts
		not   string
		want  string
	}{
		{&Node{}, &f, "", ""},
		{&Node{elsewhere: true}, &f, "", "the node is of another cluster"},
		{&Node{}, none, "", "the node has no address"},
		{&Node{}, &f, "services: 5 services are more than director.limits.services, 4", "come first: services: 5"},
		{&Node{}, &f, `services[0].backends[0].address: 10.0.0.7 is the VIP of service "shop/web/80-tcp@10.0.0.7:30080"`, "come first: services[0]"},
		{&Node{}, &f, `it is like "shop/web/80-tcp@[2001:db8::7]:30080"`, "come first: it is"},
		{&Node{}, &f, `services[0].name: "shop/web@10.0.0.70:1" is there twice`, ""},
	} {
		var not map[int]error
		if test.not != "" {
			not = map[int]error{0: errors.New(test.not)}
		}
		if got := test.node.noNodePorts(test.facts, not); !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("with %q it says %q, want %q", test.not, got, test.want)
		}
	}
}

// Whose address it is, agents remember by groups.
func TestTunnelsOfGroups(t *testing.T) {
	accepted := tunnels{}
	var groups []*v1alpha1.DirectorGroup
	for i, name := range []string{"edge", "core"} {
		g := groupOf("10s")
		g.Name, g.Status.Directors = name, []v1alpha1.Director{{Node: "a", Addresses: []string{"10.0.0.1"}}, {Node: "b", Addresses: []string{fmt.Sprintf("10.0.0.%d", i+2)}}}
		groups = append(groups, g)
	}
	if all := accepted.from(groups, time.Now()); len(all) != 3 {
		t.Errorf("packets may come from %v", all)
	}
	if got := accepted.of("core"); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.3")}) {
		t.Errorf("the directors of one group are at %v", got)
	}
}
