package site

import (
	"context"
	"fmt"
	"net/netip"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/process"
)

// startWeir runs the director and its agents, with a service for every way through
// weir and every number of servers.
func (s *Site) startWeir(ctx context.Context) error {
	shared := model.Config{}
	for _, six := range []bool{false, true} {
		director := lanAddress(balancerNumber+1, six)
		shared.Directors = append(shared.Directors, netip.PrefixFrom(director, director.BitLen()))
	}
	var tunnelled []netip.Addr
	for _, w := range through("weir") {
		for _, n := range s.sizes {
			shared.Services = append(shared.Services, s.service(w, n))
			if !w.nat() {
				tunnelled = append(tunnelled, w.VIP(n))
			}
		}
	}
	agents := make([]*process.Weir, len(s.agents))
	for i, h := range s.agents {
		c := shared
		c.Agent.Interfaces = []string{"eth0"}
		var err error
		if agents[i], err = process.StartAgent(h, c, "auto"); err != nil {
			return err
		}
	}
	for i, agent := range agents {
		var own []netip.Addr
		for _, vip := range tunnelled {
			if n := vip.AsSlice(); int(n[len(n)-1]) > i { // it has that many servers
				own = append(own, vip)
			}
		}
		if err := agent.Holds(ctx, own...); err != nil {
			return err
		}
	}
	c := shared
	c.Director.Interfaces = []string{"eth0"}
	c.Director.TunnelSource = shared.Directors
	c.Director.SNAT.Addresses = []netip.Addr{lanAddress(snatNumber, false), lanAddress(snatNumber, true)}
	director, err := process.StartDirector(s.balancers["weir"], c)
	if err != nil {
		return err
	}
	return director.Forwards(ctx)
}

// service is one of weir's services, over the first n servers.
func (s *Site) service(w *Way, n int) model.Service {
	service := model.Service{Name: fmt.Sprintf("%s-%s-%d", w.Name, w.Family(), n), VIP: w.VIP(n), Protocol: model.TCP,
		Port: model.PortRange{First: 80, Last: 80}, Mode: w.mode, SNAT: w.snat}
	for i := range n {
		b := model.NewBackend()
		switch {
		case w.snat:
			b.Address = lanAddress(serverNumber+i+1, w.Six)
		case w.nat():
			b.Address, b.Port = returnAddress("weir", i, w.Six), natPort(n)
		default:
			b.Address = lanAddress(agentNumber(i), w.Six)
		}
		service.Backends = append(service.Backends, b)
	}
	return service
}
