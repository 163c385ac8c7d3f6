package model_test

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func mode(m model.Mode) *model.Mode { return &m }

// service returns a valid service with backends at the addresses.
func service(name, vip string, port uint16, m model.Mode, backends ...string) model.Service {
	s := model.Service{
		Name: name, VIP: addr(vip), Protocol: model.TCP,
		Port: model.PortRange{First: port, Last: port}, Mode: m,
	}
	for _, b := range backends {
		backend := model.NewBackend()
		backend.Address = addr(b)
		s.Backends = append(s.Backends, backend)
	}
	return s
}

// config returns a valid configuration: one service of each mode, both families.
func config() model.Config {
	c := model.Config{
		Director:  model.Director{Interfaces: []string{"eth0"}},
		Directors: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")},
		Services: []model.Service{
			service("a", "203.0.113.1", 80, model.L2DSR, "10.0.1.1", "2001:db8:1::2"),
			service("b", "203.0.113.2", 80, model.IPIP, "10.0.1.1", "2001:db8:1::2"),
			service("c", "2001:db8::3", 80, model.GUE, "10.0.1.1", "2001:db8:1::2"),
			service("d", "203.0.113.4", 80, model.NAT, "10.0.1.1", "10.0.1.2"),
		},
	}
	c.SetDefaults()
	return c
}

var vxlan5 = model.Segment{Kind: model.SegmentVXLAN, ID: 5}

// overlay is a change of a configuration in which the first service is in a tenant's network.
func overlay(change func(*model.Config)) func(*model.Config) {
	return func(c *model.Config) {
		c.Director.VTEP.Addresses = []netip.Addr{addr("192.0.2.1")}
		c.Segments = []model.SegmentSettings{{ID: vxlan5}}
		c.Services[0].Segment = vxlan5
		c.SetDefaults()
		change(c)
	}
}

func TestValidConfig(t *testing.T) {
	for name, change := range map[string]func(*model.Config){
		"as it is": func(*model.Config) {},
		"a tenant's VIP that is an address of the group": overlay(func(c *model.Config) {
			c.Director.Group = []netip.Addr{c.Services[0].VIP}
			c.Services = c.Services[:1]
		}),
		"weight 0": func(c *model.Config) { c.Services[0].Backends[0].Weight = 0 },
		"port inside a range inside all ports": func(c *model.Config) {
			c.Services[0].VIP, c.Services[1].VIP = addr("203.0.113.4"), addr("203.0.113.4")
			c.Services[0].Port = model.PortRange{}
			c.Services[1].Port = model.PortRange{First: 80, Last: 90}
		},
		"ranges side by side": func(c *model.Config) {
			c.Services[0].VIP = addr("203.0.113.2")
			c.Services[0].Port = model.PortRange{First: 81, Last: 90}
		},
		"one VIP and port in two segments": func(c *model.Config) {
			c.Services[0].VIP = addr("203.0.113.2")
			c.Services[0].Segment = model.Segment{Kind: model.SegmentVLAN, ID: 7}
		},
		"one VIP and port in two protocols": func(c *model.Config) {
			c.Services[0].VIP = addr("203.0.113.2")
			c.Services[0].Protocol = model.UDP
		},
		"a tenant's network in VXLAN": overlay(func(c *model.Config) {
			c.Segments[0].Addresses, c.Segments[0].VNI = []netip.Addr{addr("10.0.0.2"), addr("fd00::2")}, 77
			c.Services[0].Backends[0].VTEP, c.Services[0].Backends[0].MAC = addr("192.0.2.9"), model.MAC{2}
			c.Services[3].Backends[0].Segment = &vxlan5
		}),
		"sctp, full NAT and a check": func(c *model.Config) {
			c.Services[3].Protocol, c.Services[3].SNAT = model.SCTP, true
			c.Services[3].Health = &model.HealthCheck{Kind: model.CheckSCTP}
			c.Director.SNAT.Addresses = []netip.Addr{addr("10.0.0.9")}
			c.SetDefaults()
		},
		"nat in a segment": func(c *model.Config) {
			c.Services[3].Segment = model.Segment{Kind: model.SegmentVLAN, ID: 100}
		},
		"nat backend shared on another port": func(c *model.Config) {
			c.Services = append(c.Services, service("e", "203.0.113.5", 443, model.NAT, "10.0.1.1"))
			c.SetDefaults()
		},
		"full NAT in an agent's file, which gives out no ports": func(c *model.Config) {
			c.Director.Interfaces = nil
			c.Services[3].SNAT = true
		},
		"nat backend of two services with snat": func(c *model.Config) {
			c.Director.SNAT.Addresses = []netip.Addr{addr("10.0.0.9")}
			c.Services = append(c.Services, service("e", "203.0.113.5", 80, model.NAT, "10.0.1.1"))
			c.Services[4].SNAT = true
			c.SetDefaults()
		},
		"one host, two ports": func(c *model.Config) {
			c.Services[3].Backends[1].Address = addr("10.0.1.1")
			c.Services[3].Backends[1].Port = 8080
		},
		"a tenant's VIP at a backend's address": func(c *model.Config) {
			c.Services[0].VIP = addr("10.0.1.2")
			c.Services[0].Segment = model.Segment{Kind: model.SegmentVLAN, ID: 7}
		},
		"no services":   func(c *model.Config) { c.Services = nil },
		"no backends":   func(c *model.Config) { c.Services[0].Backends = nil },
		"agent only":    func(c *model.Config) { c.Director.Interfaces = nil },
		"smallest mtu":  func(c *model.Config) { c.Services[0].Backends[0].MTU = 576 },
		"mode override": func(c *model.Config) { c.Services[1].Backends[0].Mode = mode(model.L2DSR) },
		"largest ring":  func(c *model.Config) { c.Services[0].RingSize = model.MaxRingSize },
		"tunnel sources": func(c *model.Config) {
			c.Director.TunnelSource = []netip.Prefix{netip.MustParsePrefix("10.0.0.128/25")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := config()
			change(&c)
			if err := c.Validate(); err != nil {
				t.Errorf("a valid configuration is refused:\n%v", err)
			}
		})
	}
}

func TestInvalidConfig(t *testing.T) {
	for _, test := range []struct {
		want   string
		change func(*model.Config)
	}{
		{`services[1].name: "a" is already the name of services[0]`,
			func(c *model.Config) { c.Services[1].Name = "a" }},
		{`services[0].name: is required`,
			func(c *model.Config) { c.Services[0].Name = "" }},
		{`services[0].name: contains white space or a control character`,
			func(c *model.Config) { c.Services[0].Name = "a b" }},
		{`services[0].backends[1].name: "x" is already the name of backends[0]`,
			func(c *model.Config) { c.Services[0].Backends[0].Name, c.Services[0].Backends[1].Name = "x", "x" }},
		{`services[0].backends[0].tier: 3 is out of range 0 to 2`,
			func(c *model.Config) { c.Services[0].Backends[0].Tier = 3 }},
		{`services[0].backends[1].tier: 2 comes after tier 1, and no backend of the service is in tier 1`,
			func(c *model.Config) { c.Services[0].Backends[1].Tier = 2 }},
		{`services[0].backends[0].tier: 1 comes after tier 0, and no backend of the service is in tier 0`,
			func(c *model.Config) { c.Services[0].Backends[0].Tier, c.Services[0].Backends[1].Tier = 1, 1 }},
		{`services[0].vip: ::ffff:203.0.113.1 is an IPv4 address in IPv6 clothing; write 203.0.113.1`,
			func(c *model.Config) { c.Services[0].VIP = addr("::ffff:203.0.113.1") }},
		{`services[0].vip: 224.0.0.1 is a multicast address`,
			func(c *model.Config) { c.Services[0].VIP = addr("224.0.0.1") }},
		{`services[0].vip: 0.0.0.0 is not the address of a host`,
			func(c *model.Config) { c.Services[0].VIP = addr("0.0.0.0") }},
		{`services[0].vip: 255.255.255.255 is in 240.0.0.0/4, which is reserved`,
			func(c *model.Config) { c.Services[0].VIP = addr("255.255.255.255") }},
		{`services[0].vip: is required`,
			func(c *model.Config) { c.Services[0].VIP = netip.Addr{} }},
		{`services[1].port: 203.0.113.1 tcp port 80 already belongs to service "a"`,
			func(c *model.Config) { c.Services[1].VIP = addr("203.0.113.1") }},
		{`services[1].port: 85-95 and port 80-90 of service "a" overlap in part on 203.0.113.1 tcp: neither is the more specific`,
			func(c *model.Config) {
				c.Services[1].VIP = addr("203.0.113.1")
				c.Services[0].Port = model.PortRange{First: 80, Last: 90}
				c.Services[1].Port = model.PortRange{First: 85, Last: 95}
			}},
		{`services[2].port: 2001:db8::3 tcp port all already belongs to service "b"`,
			func(c *model.Config) {
				c.Services[1].VIP = addr("2001:db8::3")
				c.Services[1].Port, c.Services[2].Port = model.PortRange{}, model.PortRange{}
			}},
		{`services[0].ring-size: 1000 is not a prime; the next one is 1009`,
			func(c *model.Config) { c.Services[0].RingSize = 1000 }},
		{`services[0].ring-size: 1048583 is larger than the largest ring, 1048573`,
			func(c *model.Config) { c.Services[0].RingSize = 1048583 }},
		{`services[0].ring-size: 3 slots are too few for 4 backends`,
			func(c *model.Config) {
				c.Services[0] = service("a", "203.0.113.1", 80, model.IPIP, "10.0.1.1", "10.0.1.2", "10.0.1.3", "10.0.1.4")
				c.Services[0].RingSize = 3
				c.SetDefaults()
			}},
		{`services[0].mode: mode(9) is not a mode (l2dsr, ipip, gue, nat or redirect)`,
			func(c *model.Config) { c.Services[0].Mode = 9 }},
		{`services[0].backends[1].mode: redirect is a service's mode, and what is not redirected needs another one (l2dsr, ipip, gue or nat)`,
			func(c *model.Config) { c.Services[0].Backends[1].Mode = mode(model.Redirect) }},
		{`agent.namespaces[1]: "a/b" is neither a name of ip netns nor a path from the root`,
			func(c *model.Config) { c.Agent.Namespaces = []string{"/proc/1/ns/net", "a/b"} }},
		{`agent.reply-interfaces[1]: "veth[" is no pattern: syntax error in pattern`,
			func(c *model.Config) { c.Agent.ReplyInterfaces = []string{"veth*", "veth["} }},
		{`agent.namespaces[0]: "" is neither a name of ip netns nor a path from the root`,
			func(c *model.Config) { c.Agent.Namespaces = []string{""} }},
		{`agent.namespaces[1]: "web" is named twice`,
			func(c *model.Config) { c.Agent.Namespaces = []string{"web", "web"} }},
		{`agent.guests[1]: 10.0.1.1/24 has bits beyond its length; write 10.0.1.0/24, or 10.0.1.1 for one address`,
			func(c *model.Config) {
				c.Agent.Guests = []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("10.0.1.1/24")}
			}},
		{`agent.namespaces: are 17, at most 16 are looked at`,
			func(c *model.Config) {
				for i := range model.MaxNamespaces + 1 {
					c.Agent.Namespaces = append(c.Agent.Namespaces, fmt.Sprint("web", i))
				}
			}},
		{`services[0].policy: policy(9) is not a policy (maglev, random, round-robin, least-conn or p2c)`,
			func(c *model.Config) { c.Services[0].Policy = 9 }},
		{`services[0].policy: least-conn may place a connection on any backend, and directors remember no TCP that goes by gue; p2c is for gue, least-conn for l2dsr, ipip, nat and redirect`,
			func(c *model.Config) { c.Services[0].Policy, c.Services[0].Mode = model.LeastConn, model.GUE }},
		{`services[0].policy: random spreads connections over all backends, and affinity source-ip wants those of a client on one`,
			func(c *model.Config) {
				c.Services[0].Policy, c.Services[0].Affinity = model.Random, model.AffinitySourceIP
			}},
		{`services[0].policy: round-robin is for protocol tcp: no datagram says that it begins a flow`,
			func(c *model.Config) {
				c.Services[0].Policy, c.Services[0].Protocol = model.RoundRobin, model.UDP
			}},
		{`services[0].policy: least-conn is for protocol tcp: directors take associations of sctp for flows of datagrams, whose beginning they do not look for`,
			func(c *model.Config) {
				c.Services[0].Policy, c.Services[0].Protocol = model.LeastConn, model.SCTP
			}},
		{`services[0].policy: p2c is for protocol tcp: an agent cannot tell which of two backends has a flow of sctp`,
			func(c *model.Config) {
				c.Services[0] = service("a", "203.0.113.1", 80, model.GUE, "10.0.9.1", "10.0.9.2")
				c.Services[0].Policy, c.Services[0].Protocol = model.P2C, model.SCTP
				c.SetDefaults()
			}},
		{`services[0].mode: redirect is for protocol tcp, whose SYNs have options`,
			func(c *model.Config) {
				c.Services[0] = service("a", "203.0.113.1", 80, model.Redirect, "10.0.9.1")
				c.Services[0].Protocol = model.SCTP
				c.SetDefaults()
			}},
		{`services[0].backends[0].host: is not available for protocol sctp yet: agents give pods packets of TCP and UDP alone`,
			func(c *model.Config) {
				c.Services[0] = service("a", "203.0.113.1", 80, model.GUE, "10.0.9.1")
				c.Services[0].Protocol, c.Services[0].Backends[0].Host = model.SCTP, addr("10.0.2.1")
				c.SetDefaults()
			}},
		{`services[0].health.kind: sctp is for services of protocol sctp`,
			func(c *model.Config) {
				c.Services[0].Health = &model.HealthCheck{Kind: model.CheckSCTP}
				c.SetDefaults()
			}},
		{`services[0].backends[1].mode: with policy round-robin no backend is in mode gue, as directors remember no TCP that goes by it`,
			func(c *model.Config) {
				c.Services[0].Policy, c.Services[0].Backends[1].Mode = model.RoundRobin, mode(model.GUE)
			}},
		{`services[0].backends[1].mode: with policy p2c no backend is in mode gue, as directors remember no TCP that goes by it`,
			func(c *model.Config) {
				c.Services[0].Policy, c.Services[0].Backends[1].Mode = model.P2C, mode(model.GUE)
			}},
		{`services[0].policy: p2c spreads connections over all backends, and affinity source-ip wants those of a client on one`,
			func(c *model.Config) {
				c.Services[0].Policy, c.Services[0].Affinity = model.P2C, model.AffinitySourceIP
			}},
		{`services[0].segment: vxlan:5 needs director.vtep, where its tunnels end`,
			func(c *model.Config) { c.Services[0].Segment = model.Segment{Kind: model.SegmentVXLAN, ID: 5} }},
		{`segments[0].id: needs director.vtep, where its tunnels end`,
			func(c *model.Config) { c.Segments = []model.SegmentSettings{{ID: vxlan5}} }},
		{`director.steering: is not available with director.vtep yet: NICs and other CPUs would be chosen by what is outside of a tunnel`,
			overlay(func(c *model.Config) {
				c.Director.Steering.Queues = model.QueueRange{First: 8, Last: 15}
				c.SetDefaults()
			})},
		{`director.vtep.geneve-port: 4789 is the port of both: packets do not say which they are`,
			overlay(func(c *model.Config) { c.Director.VTEP.GenevePort = 4789 })},
		{`director.vtep.addresses[1]: 192.0.2.2 is the second IPv4 address; one per family`,
			overlay(func(c *model.Config) {
				c.Director.VTEP.Addresses = append(c.Director.VTEP.Addresses, addr("192.0.2.2"))
			})},
		{`segments[1].id: vxlan:5 is named twice`,
			overlay(func(c *model.Config) { c.Segments = append(c.Segments, model.SegmentSettings{ID: vxlan5}) })},
		{`segments[1].vni: vxlan:5 is already that of vxlan:5`,
			overlay(func(c *model.Config) {
				c.Segments = append(c.Segments, model.SegmentSettings{ID: model.Segment{Kind: model.SegmentVXLAN, ID: 6}, VNI: 5})
			})},
		{`segments[0].hosts[0].mac: is required
segments[0].hosts[0].vtep: 2001:db8::9 is IPv6, and this director is a VTEP with no such address`,
			overlay(func(c *model.Config) {
				c.Segments[0].Hosts = []model.SegmentHost{{Address: addr("10.0.0.5"), VTEP: addr("2001:db8::9")}}
			})},
		{`segments[0].interface: is only for a VLAN: routes lead to the VTEPs of vxlan:5`,
			overlay(func(c *model.Config) { c.Segments[0].Interface = "eth1" })},
		{`segments[0].vni: is only for VXLAN and Geneve`,
			overlay(func(c *model.Config) {
				c.Segments[0] = model.SegmentSettings{ID: model.Segment{Kind: model.SegmentVLAN, ID: 7}, VNI: 8}
			})},
		{`services[0].segment: vxlan:5 is on the wire that of vxlan:50: give it another vni in segments`,
			overlay(func(c *model.Config) {
				c.Segments[0] = model.SegmentSettings{ID: model.Segment{Kind: model.SegmentVXLAN, ID: 50}, VNI: 5}
			})},
		{`segments[0].addresses[0]: 203.0.113.10 is the VIP of service "web" there: answers to health checks would come to the service`,
			overlay(func(c *model.Config) {
				c.Services[0].VIP = addr("203.0.113.10")
				c.Services[0].Name = "web"
				c.Segments[0].Addresses = []netip.Addr{addr("203.0.113.10")}
			})},
		{`segments[0].snat-addresses[0]: 172.16.0.4 has the ports of the one IPv4 address in director.snat.addresses, where 0 are`,
			overlay(func(c *model.Config) { c.Segments[0].SNATAddresses = []netip.Addr{addr("172.16.0.4")} })},
		{`segments[0].hosts[0].address: 172.16.0.4 is this director's own address in vxlan:5 (segments[].addresses), and no other host's
segments[0].snat-addresses[0]: 172.16.0.4 has the ports of the one IPv4 address in director.snat.addresses, where 2 are
segments[0].snat-addresses[0]: 172.16.0.4 is in addresses, too: answers to health checks come there
segments[0].addresses[0]: 172.16.0.4 is the VIP of service "web" there: answers to health checks would come to the service
segments[0].snat-addresses[0]: 172.16.0.4 is the VIP of service "web" there: replies would come to the service`,
			overlay(func(c *model.Config) {
				c.Director.SNAT.Addresses = []netip.Addr{addr("192.0.2.7"), addr("192.0.2.8")}
				c.Segments[0].SNATAddresses, c.Segments[0].Addresses = []netip.Addr{addr("172.16.0.4")}, []netip.Addr{addr("172.16.0.4")}
				c.Segments[0].Hosts = []model.SegmentHost{{Address: addr("172.16.0.4"), MAC: model.MAC{2}, VTEP: addr("192.0.2.9")}}
				c.Services[0].VIP, c.Services[0].Name = addr("172.16.0.4"), "web"
			})},
		{`segments[0].snat-addresses: is for VXLAN and Geneve: in vlan:7 backends get director.snat.addresses`,
			overlay(func(c *model.Config) {
				c.Segments[0] = model.SegmentSettings{ID: model.Segment{Kind: model.SegmentVLAN, ID: 7}, SNATAddresses: []netip.Addr{addr("172.16.0.4")}}
			})},
		{`services[0].backends[0].mac: is required with vtep: the backend's own in its network`,
			overlay(func(c *model.Config) { c.Services[0].Backends[0].VTEP = addr("192.0.2.9") })},
		{`services[0].backends[0].geneve-options: is only for Geneve, and the backend is in vxlan:5
services[0].backends[0].vtep: is required with vni and geneve-options`,
			overlay(func(c *model.Config) { c.Services[0].Backends[0].GeneveOptions = "\x01\x02\x80\x01abcd" })},
		{`services[1].backends[0].vtep: is only for a backend in VXLAN or Geneve: this one is in segment none`,
			overlay(func(c *model.Config) { c.Services[1].Backends[0].VTEP = addr("192.0.2.9") })},
		{`services[1].backends[0].segment: ipip needs an IPv4 address of this director in vxlan:5 (segments[].addresses): its tunnels come from there`,
			overlay(func(c *model.Config) { c.Services[1].Backends[0].Segment = &vxlan5 })},
		{`services[1].backends[0].segment: 172.16.0.3 is this director's address in vxlan:5, and not inside any prefix of directors, so agents would drop its tunnels of ipip`,
			overlay(func(c *model.Config) {
				c.Services[1].Backends[0].Segment = &vxlan5
				c.Segments[0].Addresses = []netip.Addr{addr("172.16.0.3")}
				c.Directors = []netip.Prefix{netip.MustParsePrefix("172.17.0.0/16")}
			})},
		{`services[1].snat: is only for mode nat, and this service is ipip`,
			func(c *model.Config) { c.Services[1].SNAT = true }},
		{`services[3].snat: needs an IPv4 address in director.snat.addresses for backend 10.0.1.2`,
			func(c *model.Config) {
				c.Services[3].SNAT = true
				c.Director.SNAT.Addresses = []netip.Addr{addr("2001:db8::9")}
			}},
		{`director.snat.addresses[0]: 203.0.113.1 is the VIP of service "a", whose port 80 is among director.snat.ports, 1-1000`,
			func(c *model.Config) {
				c.Director.SNAT.Addresses, c.Director.SNAT.Ports = []netip.Addr{addr("203.0.113.1")}, model.PortRange{First: 1, Last: 1000}
			}},
		{`director.kernel-sources[1]: 10.0.0.1/8 has bits beyond its length; write 10.0.0.0/8, or 10.0.0.1 for one address`,
			func(c *model.Config) {
				c.Director.KernelSources = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.1/8")}
			}},
		{`director.snat.addresses: 63 are more than 62`,
			func(c *model.Config) {
				for i := range 63 {
					c.Director.SNAT.Addresses = append(c.Director.SNAT.Addresses, netip.AddrFrom4([4]byte{10, 7, 0, byte(i)}))
				}
			}},
		{`director.group[1]: 203.0.113.1 is the VIP of service "a"`,
			func(c *model.Config) { c.Director.Group = []netip.Addr{addr("10.0.0.2"), addr("203.0.113.1")} }},
		{`director.group[0]: 127.0.0.1 is a loopback address, which no packet on a wire may have`,
			func(c *model.Config) { c.Director.Group = []netip.Addr{addr("127.0.0.1")} }},
		{`director.group[2]: 10.0.0.2 is named twice`,
			func(c *model.Config) {
				c.Director.Group = []netip.Addr{addr("10.0.0.2"), addr("10.0.0.3"), addr("10.0.0.2")}
			}},
		{`director.group: 65 are more than 64`,
			func(c *model.Config) {
				for i := range 65 {
					c.Director.Group = append(c.Director.Group, netip.AddrFrom4([4]byte{10, 7, 0, byte(i)}))
				}
			}},
		{`director.snat.announce: needs bgp or director.neighbor, by which addresses are announced
director.snat.announce: needs director.snat.addresses`,
			func(c *model.Config) { c.Director.SNAT = model.SNAT{Announce: true, Ports: c.Director.SNAT.Ports} }},
		{`director.snat.ports: 2000-2014 are fewer than 16 ports`,
			func(c *model.Config) { c.Director.SNAT.Ports = model.PortRange{First: 2000, Last: 2014} }},
		{`services[1].backends[0].port: is only for mode nat, or with host: ipip leaves the port as it is`,
			func(c *model.Config) { c.Services[1].Backends[0].Port = 8080 }},
		{`services[0].backends[0].host: is only for modes gue and ipip, and this backend is l2dsr`,
			func(c *model.Config) { c.Services[0].Backends[0].Host = addr("10.0.2.1") }},
		{`services[3].backends[0].host: is only for modes gue and ipip, and this backend is nat`,
			func(c *model.Config) { c.Services[3].Backends[0].Host = addr("10.0.2.1") }},
		{`services[0].backends[0].host: is not for mode redirect: connections are handed over to the backend's address`,
			func(c *model.Config) {
				c.Services[0] = service("a", "203.0.113.1", 80, model.Redirect, "10.0.9.1")
				c.Services[0].Backends[0].Host = addr("10.0.2.1")
				c.SetDefaults()
			}},
		{`services[1].backends[0].address: 10.0.1.1 is IPv4 and VIP 2001:db8::2 is IPv6: the agent of a host cannot change the family`,
			func(c *model.Config) {
				c.Services[1] = service("b", "2001:db8::2", 80, model.GUE, "10.0.1.1")
				c.Services[1].Backends[0].Host = addr("10.0.2.1")
				c.SetDefaults()
			}},
		{`services[1].backends[0].host: 127.0.0.1 is a loopback address, which no packet on a wire may have`,
			func(c *model.Config) { c.Services[1].Backends[0].Host = addr("127.0.0.1") }},
		{`services[1].backends[1].port: 10.0.1.1 is also port 0 of backend "10.0.1.1": in ipip the agent knows a pod by its address alone`,
			func(c *model.Config) {
				for i := range c.Services[1].Backends {
					b := &c.Services[1].Backends[i]
					b.Host, b.Address = addr("10.0.2.1"), addr("10.0.1.1")
				}
				c.Services[1].Backends[1].Port = 8080
			}},
		{`services[1].backends[0].port: cannot replace every port of a service with port 80-90`,
			func(c *model.Config) {
				c.Services[1].Port = model.PortRange{First: 80, Last: 90}
				c.Services[1].Backends[0].Host, c.Services[1].Backends[0].Port = addr("10.0.2.1"), 8080
			}},
		{`services[1].backends[0].mtu: 1355 is out of range 1356 to 9216`,
			func(c *model.Config) {
				c.Services[1] = service("b", "2001:db8::2", 80, model.GUE, "2001:db8:1::7")
				c.Services[1].Backends[0].Host, c.Services[1].Backends[0].MTU = addr("2001:db8:9::1"), 1355
				c.SetDefaults()
			}},
		{`services[3].backends[0].port: cannot replace every port of a service with port 80-90`,
			func(c *model.Config) {
				c.Services[3].Port = model.PortRange{First: 80, Last: 90}
				c.Services[3].Backends[0].Port = 8080
			}},
		{`services[3].backends[0].address: 2001:db8:1::1 is IPv6 and VIP 203.0.113.4 is IPv4: mode nat cannot change the family`,
			func(c *model.Config) { c.Services[3].Backends[0].Address = addr("2001:db8:1::1") }},
		{`services[3].backends[1].address: 10.0.1.1 is already backend "10.0.1.1" of this service; give one backend a larger weight instead`,
			func(c *model.Config) {
				c.Services[3].Backends[1].Address = addr("10.0.1.1")
				c.Services[3].Backends[1].Port = 80
			}},
		{`services[4].backends[0].address: 10.0.1.1 tcp port 80 is a nat backend of service "d" and of service "e": a reply from it could be either's; use snat, or another port or address`,
			func(c *model.Config) {
				c.Services = append(c.Services, service("e", "203.0.113.5", 8080, model.NAT, "10.0.1.1"))
				c.Services[4].Backends[0].Port = 80
				c.SetDefaults()
			}},
		{`services[1].backends[0].address: 203.0.113.4 is the VIP of service "d"`,
			func(c *model.Config) { c.Services[1].Backends[0].Address = addr("203.0.113.4") }},
		{`services[0].backends[0].address: 127.0.0.1 is a loopback address, which no packet on a wire may have`,
			func(c *model.Config) { c.Services[0].Backends[0].Address = addr("127.0.0.1") }},
		{`services[0].backends[0].vlan: 4095 is out of range 1 to 4094`,
			func(c *model.Config) { c.Services[0].Backends[0].VLAN = 4095 }},
		{`services[0].backends[0].mtu: 575 is out of range 576 to 9216`,
			func(c *model.Config) { c.Services[0].Backends[0].MTU = 575 }},
		{`services[1].backends[1].mtu: 1000 is out of range 1280 to 9216`,
			func(c *model.Config) { c.Services[1].Backends[1].MTU = 1000 }},
		{`services[2].backends[0].mtu: 1300 is out of range 1312 to 9216`,
			func(c *model.Config) { c.Services[2].Backends[0].MTU = 1300 }},
		{`director.interfaces[1]: "eth0" is named twice`,
			func(c *model.Config) { c.Director.Interfaces = []string{"eth0", "eth0"} }},
		{`director.interfaces[0]: "enp0s31f6-uplink" is longer than the 15 bytes of an interface name`,
			func(c *model.Config) { c.Director.Interfaces = []string{"enp0s31f6-uplink"} }},
		{`director.xdp: unknown xdp mode "fast" (one of auto, generic, native)`,
			func(c *model.Config) { c.Director.XDP = "fast" }},
		{`director.tunnel-source[1]: 10.0.0.0/25 is the second IPv4 prefix; one per family`,
			func(c *model.Config) {
				c.Director.TunnelSource = []netip.Prefix{netip.MustParsePrefix("10.0.0.128/25"), netip.MustParsePrefix("10.0.0.0/25")}
			}},
		{`director.tunnel-source[0]: 10.9.0.0/24 is not inside any prefix of directors, so agents would drop what comes from it`,
			func(c *model.Config) { c.Director.TunnelSource = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")} }},
		{`directors[0]: 10.0.0.1/24 has bits beyond its length; write 10.0.0.0/24, or 10.0.0.1 for one address`,
			func(c *model.Config) { c.Directors[0] = netip.MustParsePrefix("10.0.0.1/24") }},
		{`directors[0]: 0.0.0.0/0 is every address there is`,
			func(c *model.Config) { c.Directors[0] = netip.MustParsePrefix("0.0.0.0/0") }},
		{`director.limits.services: 65537 is out of range 1 to 65536`,
			func(c *model.Config) { c.Director.Limits.Services = 65537 }},
		{`director.segment-limits.flows: 8191 is less than a 128th of director.limits.flows, 1048576: the least is 8192`,
			func(c *model.Config) { c.Director.SegmentLimits.Flows = 8191 }},
		{`segments[0].limits.flows: 8 is less than a 128th of director.limits.flows, 1025: the least is 9`,
			overlay(func(c *model.Config) {
				c.Director.Limits.Flows = 1025
				c.Segments[0].Limits = &model.SegmentLimits{SegmentQuota: model.SegmentQuota{Flows: 8}}
			})},
		{`director.segment-limits.flows: 1048577 is more than director.limits.flows, 1048576`,
			func(c *model.Config) { c.Director.SegmentLimits.Flows = 1048577 }},
		{`director.limits.flows: 1023 is out of range 1024 to 268435456`,
			func(c *model.Config) { c.Director.Limits.Flows = 1023 }},
		{`services: 4 services are more than director.limits.services, 3`,
			func(c *model.Config) { c.Director.Limits.Services = 3 }},
		{`services: 8 backends are more than director.limits.backends, 7 (a backend counts once per service)`,
			func(c *model.Config) { c.Director.Limits.Backends = 7 }},
		{`services: rings of 33024 bytes are more than director.limits.ring-memory, 33023`,
			func(c *model.Config) { c.Director.Limits.RingMemory = 33023 }},
	} {
		t.Run(test.want, func(t *testing.T) {
			c := config()
			test.change(&c)
			err := c.Validate()
			if err == nil {
				t.Fatal("an invalid configuration is accepted")
			}
			if err.Error() != test.want {
				t.Errorf("the error is\n  %v\nwant\n  %s", err, test.want)
			}
			var field model.FieldError
			if !errors.As(err, &field) || !strings.HasPrefix(test.want, field.Path+": ") {
				t.Errorf("the error does not name its field: %#v", err)
			}
		})
	}
}

func TestEveryProblemIsReported(t *testing.T) {
	c := config()
	c.Services[0].Name = ""
	c.Services[1].Mode = 9
	c.Services[3].Backends[1].VLAN = 5000
	var all model.FieldErrors
	if err := c.Validate(); !errors.As(err, &all) || len(all) != 3 {
		t.Errorf("3 mistakes give %d errors: %v", len(all), err)
	}
}

func TestSetDefaults(t *testing.T) {
	c := config()
	if got := c.Services[0].Backends[1].Name; got != "2001:db8:1::2" {
		t.Errorf("a backend without a name is called %q, want its address", got)
	}
	if got := c.Director.SNAT.Ports.String(); got != "1024-32767" {
		t.Errorf("full NAT takes ports %s, want those below Linux's ephemeral ones", got)
	}
	want := model.Limits{Services: 4096, Backends: 65536, RingMemory: 64 << 20, Fragments: 65536, Flows: 1 << 20, SourceRanges: 65536}
	if c.Director.Limits != want {
		t.Errorf("limits are %+v, want %+v", c.Director.Limits, want)
	}
	again := config()
	again.SetDefaults()
	if *c.Agent.UDPFlows != 65536 {
		t.Errorf("an agent remembers %d UDP flows, want 65536", *c.Agent.UDPFlows)
	}
	if !reflect.DeepEqual(again, c) {
		t.Error("setting defaults twice is not the same as once")
	}
}

func TestDefaultRingSize(t *testing.T) {
	for backends, want := range map[int]uint32{0: 1021, 10: 1021, 11: 1103, 100: 10007, 1000: 100003} {
		if got := model.DefaultRingSize(backends); got != want {
			t.Errorf("the ring of %d backends has %d slots, want %d", backends, got, want)
		}
	}
	for backends := range 10486 {
		if got, want := model.DefaultRingSize(backends), maglev.DefaultSize(backends); got != want {
			t.Fatalf("the model expects %d slots for %d backends, maglev makes %d", got, backends, want)
		}
	}
}

func TestManyBackendsNeedARingSize(t *testing.T) {
	c := config()
	c.Services = []model.Service{{Name: "large", VIP: addr("203.0.113.1"), Protocol: model.TCP, Mode: model.IPIP}}
	for i := range 10486 {
		b := model.NewBackend()
		b.Address = netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		c.Services[0].Backends = append(c.Services[0].Backends, b)
	}
	c.SetDefaults()
	want := "services[0].ring-size: is required for 10486 backends: 100 slots for each are more than the largest ring, 1048573"
	if err := c.Validate(); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	c.Services[0].RingSize = model.MaxRingSize
	if err := c.Validate(); err != nil {
		t.Errorf("with a ring size: %v", err)
	}
}

// TestValidateIsNotQuadratic checks the largest configuration that the limits
// allow: quadratic rules would take hours.
func TestValidateIsNotQuadratic(t *testing.T) {
	c := model.Config{}
	for i := range model.MaxServices {
		vip := netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)})
		backend := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		c.Services = append(c.Services, service(fmt.Sprint("s", i), vip.String(), 80, model.NAT, backend.String()))
	}
	for i := range 4096 {
		b := model.NewBackend()
		b.Address = netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)})
		c.Services[0].Backends = append(c.Services[0].Backends, b)
	}
	c.Director.Limits = model.Limits{Services: model.MaxServices, Backends: model.MaxBackends, RingMemory: model.MaxRingMemory}
	c.SetDefaults()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}
