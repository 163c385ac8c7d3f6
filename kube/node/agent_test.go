package node

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
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
