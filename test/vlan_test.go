package test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// A tenant's VLAN is a segment: l2dsr keeps, changes, adds and removes tags, and a
// VIP in one VLAN is not one in another.
//
//	client --- switch --- director
//	                  --- backend
func TestSegments(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		client  uint16 // VLAN of the client, 0: untagged
		backend uint16 // of the backend
		segment string
		vlan    string // the backend's key in the file
		served  bool
	}{
		"kept":           {100, 100, "vlan:100", "", true},
		"changed":        {100, 200, "vlan:100", ", vlan: 200", true},
		"added":          {0, 200, "none", ", vlan: 200", true},
		"another VLAN":   {101, 101, "vlan:100", "", false},
		"no VLAN at all": {0, 0, "vlan:100", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			lab := netlab.ForTest(t)
			client, lan, director, backend := lab.Host("client"), lab.Switch("switch"), lab.Host("director"), lab.Host("backend")
			tagged := netlab.LinkOptions{XDP: true, Tagged: true}
			up := func(h *netlab.Host, number int) *netlab.Port {
				opts := tagged
				opts.A = lanPrefixes(number)
				return lab.Link(h, lan, opts).A
			}
			clientPort, directorPort, backendPort := up(client, 2), up(director, directorHost), up(backend, backendHost)
			// The client accepts any tag: its replies come in both VLANs.
			joinVLAN(t, clientPort, c.client, false)
			joinVLAN(t, backendPort, c.backend, true)
			for _, six := range []bool{false, true} {
				vip := way{mode: "l2dsr", inner6: six, outer6: six}.vip()
				backend.Address("lo", fmt.Sprintf("%s/%d", vip, vip.BitLen()))
				client.Route(fmt.Sprintf("%s/%d", vip, vip.BitLen()), lanAddress(directorHost, six).String())
				client.Neighbor("eth0", lanAddress(directorHost, six).String(), directorPort.MAC)
				backend.Neighbor("eth0", lanAddress(2, six).String(), clientPort.MAC)
			}
			startNginx(t, backend)
			startDaemon(t, director, "run", "director: {interfaces: [eth0]}\nservices:\n"+
				segmentService(c.segment, false, backendPort.MAC, c.vlan)+segmentService(c.segment, true, backendPort.MAC, c.vlan))
			for _, six := range []bool{false, true} {
				w := way{mode: "l2dsr", inner6: six, outer6: six}
				out, err := tryOn(t, client, "curl", "--silent", "--globoff", "--max-time", map[bool]string{true: "10", false: "1"}[c.served], w.url("name"))
				if served := err == nil && out == "backend"; served != c.served {
					t.Errorf("%s: curl prints %q (%v), want an answer: %v", w, out, err, c.served)
				}
			}
		})
	}
}

// segmentService is a service with the backend's MAC, because the director has no address in the
// VLAN from which to ask for it.
func segmentService(segment string, six bool, mac net.HardwareAddr, vlan string) string {
	w := way{mode: "l2dsr", inner6: six, outer6: six}
	return fmt.Sprintf(`- name: %s
  segment: %s
  vip: "%s"
  protocol: tcp
  port: 80
  mode: l2dsr
  backends:
  - {name: backend, address: "%s", mac: "%s"%s}
`, w, segment, w.vip(), w.address(1), mac, vlan)
}

// joinVLAN puts a port into a VLAN. A strict port accepts no other frames.
func joinVLAN(t *testing.T, port *netlab.Port, id uint16, strict bool) {
	t.Helper()
	leave, err := port.JoinVLAN(id, strict)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(leave)
}

// Two tenants have the same VIP, the same members' address, which is the director's own besides, and clients with
// the same address. Each gets its own server.
//
//	client100 --- switch --- director
//	client200 ---        --- server100, server200
func TestTenantsWithEqualAddresses(t *testing.T) {
	t.Parallel()
	lab := netlab.ForTest(t)
	lan, director := lab.Switch("switch"), lab.Host("director")
	up := func(h *netlab.Host, number int) *netlab.Port {
		return lab.Link(h, lan, netlab.LinkOptions{XDP: true, Tagged: true, A: lanPrefixes(number)}).A
	}
	directorPort := up(director, directorHost)
	w := way{mode: "l2dsr"}
	services := ""
	clients := map[string]*netlab.Host{}
	for i, id := range []uint16{100, 200} {
		client, server := lab.Host(fmt.Sprint("client", id)), lab.Host(fmt.Sprint("server", id))
		clientPort, serverPort := up(client, 2), up(server, backendHost+i)
		joinVLAN(t, clientPort, id, true)
		joinVLAN(t, serverPort, id, true)
		vip := fmt.Sprintf("%s/%d", w.vip(), w.vip().BitLen())
		server.Address("lo", vip)
		client.Route(vip, lanAddress(directorHost, false).String())
		client.Neighbor("eth0", lanAddress(directorHost, false).String(), directorPort.MAC)
		server.Neighbor("eth0", lanAddress(2, false).String(), clientPort.MAC)
		startNginx(t, server)
		clients[server.Name] = client
		services += fmt.Sprintf("- {name: of%d, segment: 'vlan:%d', vip: %s, protocol: tcp, port: 80, mode: l2dsr, backends: [{address: %s, mac: '%s'}]}\n",
			id, id, w.vip(), lanAddress(directorHost, false), serverPort.MAC)
	}
	startDaemon(t, director, "run", "director: {interfaces: [eth0]}\nservices:\n"+services)
	for range 5 {
		for server, client := range clients {
			if out, err := tryOn(t, client, "curl", "--silent", "--max-time", "10", w.url("name")); err != nil || out != server {
				t.Errorf("%s gets %q (%v), want %s", client.Name, out, err, server)
			}
		}
	}
}

// A director has no interface in two tenants' VLANs, but an address in each. It probes the members there, which
// have the same address, and answers for its own, also where the host forwards other packets, as nodes of Kubernetes do.
func TestProbesInVLANs(t *testing.T) {
	t.Parallel()
	same := func(lab *netlab.Lab, name string) *netlab.Host {
		h := lab.Router(name)
		h.Address("lo", "172.16.0.11/32", "172.16.0.100/32", "fd00:16::11/128", "fd00:16::100/128")
		return h
	}
	for name, host := range map[string]func(*netlab.Lab, string) *netlab.Host{"a host": (*netlab.Lab).Host, "a host that forwards": (*netlab.Lab).Router, "a host with the tenants' addresses": same} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testProbesInVLANs(t, host)
		})
	}
}

func testProbesInVLANs(t *testing.T, host func(*netlab.Lab, string) *netlab.Host) {
	lab := netlab.ForTest(t)
	lan, director := lab.Switch("switch"), host(lab, "director")
	up := func(h *netlab.Host, addresses ...string) *netlab.Port {
		return lab.Link(h, lan, netlab.LinkOptions{XDP: true, Tagged: true, A: addresses}).A
	}
	up(director, lanPrefixes(directorHost)...)
	services, segments := "", "segments:\n"
	servers := map[string]*netlab.Host{}
	for _, id := range []uint16{100, 200} {
		server := lab.Host(fmt.Sprint("server", id))
		port := up(server, "172.16.0.11/24", "fd00:16::11/64")
		joinVLAN(t, port, id, true)
		server.Address("lo", "172.16.0.100/32", "fd00:16::100/128")
		startNginx(t, server)
		servers[server.Name] = server
		segments += fmt.Sprintf("- {id: 'vlan:%d', addresses: [172.16.0.3, 'fd00:16::3']}\n", id)
		for kind, port80 := range map[string]int{"tcp": 80, "icmp": 81} {
			for family, a := range map[string][2]string{"4": {"172.16.0.100", "172.16.0.11"}, "6": {"fd00:16::100", "fd00:16::11"}} {
				services += fmt.Sprintf("- {name: %s%s-of-%d, segment: 'vlan:%d', vip: '%s', protocol: tcp, port: %d, mode: l2dsr, health: {kind: %s, interval: 200ms, panic: 0}, backends: [{name: b, address: '%s', mac: '%s'}]}\n",
					kind, family, id, id, a[0], port80, kind, a[1], port.MAC)
			}
		}
	}
	d := startDaemon(t, director, "run", "director: {interfaces: [eth0]}\nservices:\n"+services+segments)
	var list []model.ServiceStatus
	states := func(wanted func(name string) model.HealthState) func() bool {
		return func() bool {
			var err error
			list, err = d.services()
			return err == nil && !slices.ContainsFunc(list, func(s model.ServiceStatus) bool { return s.Backends[0].Health.State != wanted(s.Name) })
		}
	}
	defer func() {
		for _, s := range list {
			if t.Failed() {
				t.Logf("%s: %+v", s.Name, s.Backends[0].Health)
			}
		}
	}()
	d.waitFor("find all up", states(func(string) model.HealthState { return model.HealthUp }))
	if strings.Contains(d.logged(), "backend is down") {
		t.Error("backends were called down before answers could come")
	}
	if err := servers["server100"].Kill(); err != nil {
		t.Fatal(err)
	}
	d.waitFor("find one tenant's server down", states(func(name string) model.HealthState {
		if strings.HasPrefix(name, "tcp") && strings.HasSuffix(name, "100") {
			return model.HealthDown
		}
		return model.HealthUp
	}))
}
