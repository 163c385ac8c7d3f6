package model_test

import (
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
)

// A pod's host may have a VIP as its own address, if no service there takes its tunnels; so may
// a pod in its host's own network, and no other.
func TestPodsHostIsVIP(t *testing.T) {
	for name, test := range map[string]struct {
		change func(c *model.Config)
		want   string // empty: nothing
	}{
		"other ports":             {func(*model.Config) {}, ""},
		"the port of gue, of TCP": {func(c *model.Config) { c.Services[0].Port = model.PortRange{} }, ""},
		"the port of gue": {func(c *model.Config) {
			c.Services[0].Protocol, c.Services[0].Port = model.UDP, model.PortRange{First: 6000, Last: 6100}
		}, `services[0].backends[0].host: 10.0.1.1 is the VIP of service "a", which has the UDP port 6080, where tunnels of gue end
services[0].backends[1].host: 10.0.1.1 is the VIP of service "a", which has the UDP port 6080, where tunnels of gue end`},
		"a source of full NAT, at other ports": {func(c *model.Config) {
			c.Director.SNAT = model.SNAT{Addresses: []netip.Addr{addr("10.0.1.1")}, Ports: model.PortRange{First: 1024, Last: 29999}}
		}, ""},
		"a source of full NAT": {func(c *model.Config) {
			c.Director.SNAT = model.SNAT{Addresses: []netip.Addr{addr("10.0.1.2"), addr("10.0.1.1")}, Ports: model.PortRange{First: 1024, Last: 32767}}
		}, `director.snat.addresses[1]: 10.0.1.1 is the VIP of service "a", whose port 30080 is among director.snat.ports, 1024-32767`},
		"another host's": {func(c *model.Config) { c.Services[0].Backends[1].Host = addr("10.0.1.2") },
			`services[0].backends[1].address: 10.0.1.1 is the VIP of service "a"`},
	} {
		t.Run(name, func(t *testing.T) {
			c := model.Config{Services: []model.Service{service("a", "10.0.1.1", 30080, model.GUE, "10.244.1.2", "10.0.1.1")}}
			c.SetDefaults()
			for i := range c.Services[0].Backends {
				c.Services[0].Backends[i].Host = addr("10.0.1.1")
			}
			test.change(&c)
			got := ""
			if err := c.Validate(); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("the configuration is refused with\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

// An address of a host's own, as services with kernel sources say that their VIP is, is a backend's
// as well, but where what it is sent comes to one of these ports.
func TestBackendIsHostWithKernelSources(t *testing.T) {
	for name, test := range map[string]struct {
		change func(port, s *model.Service)
		want   string // empty: nothing
	}{
		"l2dsr":                    {func(_, s *model.Service) { s.Mode = model.L2DSR }, ""},
		"l2dsr, and the same port": {func(_, s *model.Service) { s.Mode, s.Port.First, s.Port.Last = model.L2DSR, 30080, 30080 }, ""},
		"ipip":                     {func(_, s *model.Service) { s.Mode = model.IPIP }, ""},
		"gue":                      {func(_, s *model.Service) { s.Mode = model.GUE }, ""},
		"gue, and its port of TCP": {func(port, s *model.Service) { s.Mode, port.Port = model.GUE, model.PortRange{First: 6080, Last: 6080} }, ""},
		"gue, and its port": {func(port, s *model.Service) {
			s.Mode, port.Protocol, port.Port = model.GUE, model.UDP, model.PortRange{First: 6080, Last: 6080}
		}, `services[1].backends[0].address: 10.0.1.1 is the VIP of service "port", which has the UDP port 6080, where tunnels of gue end`},
		"l2dsr, and gue's port": {func(port, s *model.Service) {
			s.Mode, port.Protocol, port.Port = model.L2DSR, model.UDP, model.PortRange{First: 6080, Last: 6080}
		}, ""},
		"nat":                         {func(_, s *model.Service) { s.Mode = model.NAT }, ""},
		"nat, and the same port":      {func(_, s *model.Service) { s.Mode, s.Backends[0].Port = model.NAT, 30080 }, `services[1].backends[0].address: 10.0.1.1 is the VIP of service "port"`},
		"redirect":                    {func(_, s *model.Service) { s.Mode = model.Redirect }, ""},
		"redirect, and the same port": {func(_, s *model.Service) { s.Mode, s.Port = model.Redirect, model.PortRange{First: 30080, Last: 30080} }, `services[1].backends[0].address: 10.0.1.1 is the VIP of service "port"`},
		"another host's": {func(_, s *model.Service) {
			s.Mode, s.Backends[0].Host, s.Backends[0].Port = model.GUE, addr("10.0.1.2"), 8080
		}, ""},
		"another host's, at the same port": {func(_, s *model.Service) {
			s.Mode, s.Backends[0].Host, s.Backends[0].Port = model.GUE, addr("10.0.1.2"), 30080
		}, `services[1].backends[0].address: 10.0.1.1 is the VIP of service "port"`},
		"without kernel sources": {func(port, s *model.Service) { port.KernelSources, s.Mode = false, model.IPIP }, `services[1].backends[0].address: 10.0.1.1 is the VIP of service "port"`},
	} {
		t.Run(name, func(t *testing.T) {
			c := model.Config{Services: []model.Service{service("port", "10.0.1.1", 30080, model.GUE, "10.244.1.2"), service("nodes", "203.0.113.1", 80, model.L2DSR, "10.0.1.1")}}
			c.Services[0].KernelSources = true
			test.change(&c.Services[0], &c.Services[1])
			c.SetDefaults()
			got := ""
			if err := c.Validate(); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("the configuration is refused with\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}
