package node

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// The agent of a node is told of the services that it delivers packets of, and of no others.
func TestAgentFile(t *testing.T) {
	backend := func(address, host string, port uint16) model.Backend {
		b := model.NewBackend()
		b.Name, b.Address, b.Port = address, netip.MustParseAddr(address), port
		if host != "" {
			b.Host = netip.MustParseAddr(host)
		}
		return b
	}
	var services []decoded
	for i, s := range []model.Service{
		{Name: "pods-here", Mode: model.GUE, Backends: []model.Backend{backend("10.244.1.5", "10.0.0.7", 8080), backend("10.244.2.5", "10.0.0.8", 8080)}},
		{Name: "pods-elsewhere", Mode: model.GUE, Backends: []model.Backend{backend("10.244.2.6", "10.0.0.8", 8080)}},
		{Name: "node-here", Mode: model.IPIP, Backends: []model.Backend{backend("10.0.0.7", "", 0)}},
		{Name: "translated", Mode: model.NAT, SNAT: true, Backends: []model.Backend{backend("10.0.0.7", "", 80)}},
	} {
		s.VIP, s.Protocol, s.Port = netip.AddrFrom4([4]byte{203, 0, 113, byte(i + 1)}), model.TCP, model.PortRange{First: 80, Last: 80}
		services = append(services, decoded{of: &v1alpha1.CompiledService{}, documents: []model.Document{{Service: s}}})
	}
	f := factsOf("a", nodeOf(), nil)
	text, err := agentFile(services, func(*decoded) []model.Document { return nil }, []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")}, &f, []string{"eth*"}, []string{"veth*", "flannel.1"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("f", text)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range c.Services {
		names = append(names, s.Name)
	}
	if got := fmt.Sprint(names, c.Directors, c.Agent.Interfaces, c.Agent.ReplyInterfaces); got != "[pods-here node-here] [10.0.0.2/32] [eth*] [veth* flannel.1]" {
		t.Errorf("the agent is told of %s", got)
	}
}

// Packets of a node that is no director any more are taken while it drains.
func TestTunnels(t *testing.T) {
	g := groupOf("10s")
	now := time.Now()
	are := func(nodes ...string) {
		g.Status.Directors = nil
		for _, n := range nodes {
			g.Status.Directors = append(g.Status.Directors, v1alpha1.Director{Node: n, Addresses: []string{"10.0.0." + n, "2001:db8::" + n}})
		}
	}
	accepted := tunnels{}
	for _, step := range []struct {
		at    int
		nodes []string
		want  string
	}{
		{0, []string{"1", "2"}, "[10.0.0.1/32 10.0.0.2/32 2001:db8::1/128 2001:db8::2/128]"},
		{100, []string{"1", "2"}, "[10.0.0.1/32 10.0.0.2/32 2001:db8::1/128 2001:db8::2/128]"},
		{101, []string{"2"}, "[10.0.0.1/32 10.0.0.2/32 2001:db8::1/128 2001:db8::2/128]"},
		{115, []string{"2"}, "[10.0.0.1/32 10.0.0.2/32 2001:db8::1/128 2001:db8::2/128]"},
		{130, []string{"2"}, "[10.0.0.2/32 2001:db8::2/128]"},
	} {
		are(step.nodes...)
		if got := fmt.Sprint(accepted.from([]*v1alpha1.DirectorGroup{g}, now.Add(time.Duration(step.at)*time.Second))); got != step.want {
			t.Errorf("after %d s packets are taken from %s, want %s", step.at, got, step.want)
		}
	}
	if got := accepted.from(nil, now.Add(131*time.Second)); len(got) != 2 {
		t.Errorf("without a group packets are taken from %v", got)
	}
}

// The agent of a node without a director is told of all groups; of one that is gone for as long as
// its directors may forward. It has a file before anybody is known, and one that is there stays.
func TestAgentOfAllGroups(t *testing.T) {
	n := &Node{Options: Options{AgentFile: filepath.Join(t.TempDir(), "agent.yaml"), AgentInterfaces: []string{"eth0"}}, tunnels: tunnels{}, ports: nodePorts{}, forwarding: map[string]time.Time{},
		set: cache.NewSharedIndexInformer(nil, &v1alpha1.DirectorSet{}, 0, nil)}
	f := factsOf("a", nodeOf(), nil)
	says := func() string {
		c, err := config.Load(n.AgentFile)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range c.Services {
			names = append(names, s.Name)
		}
		return fmt.Sprint(names, c.Directors, c.Agent.Interfaces)
	}
	if err := n.writeOnce(); err != nil {
		t.Fatal(err)
	}
	if got := says(); got != "[] [] [eth0]" {
		t.Errorf("at first the agent is told of %s", got)
	}
	groups := map[string]*v1alpha1.DirectorGroup{}
	for i, name := range []string{"east", "west", "nodes"} {
		g := groupOf("10s")
		g.Name, g.Status.Directors = name, []v1alpha1.Director{{Node: name, Addresses: []string{fmt.Sprintf("10.0.0.%d", i+1)}}}
		groups[name] = g
		s := model.Service{Name: name, VIP: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.GUE}
		b := model.NewBackend()
		b.Name, b.Address, b.Port, b.Host = "pod", netip.MustParseAddr("10.244.1.5"), 8080, f.V4
		if name == "nodes" { // of these the agent is not told
			b.Address, b.Port, b.Host = f.V4, 0, netip.Addr{}
		}
		s.Backends = []model.Backend{b}
		c, err := group.Encode("default/"+name, 0, 1, []model.Document{{Service: s, Log: model.Log{Generations: []model.Generation{{Number: 1, Slots: 53}}}}})
		if err != nil {
			t.Fatal(err)
		}
		o := &v1alpha1.DirectorSet{Spec: v1alpha1.DirectorSetSpec{Group: name, Count: 1, Services: []v1alpha1.CompiledService{c}}}
		o.Name = group.ObjectName(name, 0)
		if err := n.set.GetStore().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	for _, step := range []struct {
		after  time.Duration
		groups []*v1alpha1.DirectorGroup
		want   string
	}{
		{0, []*v1alpha1.DirectorGroup{groups["east"], groups["west"]}, "[east west] [10.0.0.1/32 10.0.0.2/32] [eth0]"},
		{10 * time.Second, []*v1alpha1.DirectorGroup{groups["west"]}, "[east west] [10.0.0.1/32 10.0.0.2/32] [eth0]"},
		{23 * time.Second, []*v1alpha1.DirectorGroup{groups["west"]}, "[west] [10.0.0.2/32] [eth0]"},
		{time.Hour, nil, "[west] [10.0.0.2/32] [eth0]"}, // there may be a new one
	} {
		if len(step.groups) < 2 { // its DirectorSets go with it
			for _, o := range n.set.GetStore().List() {
				if o.(*v1alpha1.DirectorSet).Spec.Group == "east" {
					_ = n.set.GetStore().Delete(o)
				}
			}
		}
		if err := n.writeAgent(step.groups, &f, began.Add(step.after)); err != nil {
			t.Fatal(err)
		}
		if got := says(); got != step.want {
			t.Errorf("after %v the agent is told of %s, want %s", step.after, got, step.want)
		}
	}
	if err := n.writeOnce(); err != nil || !strings.HasPrefix(says(), "[west]") {
		t.Errorf("a file that is there is written anew: %s, error %v", says(), err)
	}
}

// A way is good where packets leave by no tunnel and the pod answers, if only that nobody listens.
// (Tunnels are in the lab of Kubernetes.)
func TestWayTo(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(listener.Addr().String())
	if why := wayTo(t.Context(), at); why != "" {
		t.Errorf("to who listens: %s", why)
	}
	listener.Close()
	if why := wayTo(t.Context(), at); why != "" {
		t.Errorf("to who does not listen: %s", why)
	}
	if why := wayTo(t.Context(), netip.MustParseAddrPort("255.255.255.255:80")); why == "" {
		t.Error("to nobody there is a way")
	}
}
