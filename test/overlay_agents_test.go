package test

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// agentsTenant is a tenant whose virtual machines have agents.
type agentsTenant struct {
	name    string
	client  vm
	servers []vm
	agents  []*daemon
}

// Two tenants have the same VIPs, and members with the same addresses that have agents: tunnels of ipip and gue to
// these are in the tenants' networks. In gue a connection stays where it is while its backend drains, because the
// other member's agent passes its packets on inside of the network.
func TestAgentsInTenantsNetworks(t *testing.T) {
	t.Parallel()
	for _, six := range []bool{false, true} {
		t.Run(fmt.Sprintf("over 6: %v", six), func(t *testing.T) { testAgentsInTenants(t, six) })
	}
}

// insideWay is a service of a tenant.
type insideWay struct {
	mode, vip string
	members   []string
}

func (w insideWay) String() string { return fmt.Sprintf("%s at %s to %s", w.mode, w.vip, w.members[0]) }

var insideWays = []insideWay{
	{"gue", "172.16.0.100", []string{"172.16.0.11", "172.16.0.12"}},
	{"gue", "172.16.0.101", []string{"fd00:16::11", "fd00:16::12"}},
	{"gue", "fd00:16::100", []string{"172.16.0.11", "172.16.0.12"}},
	{"gue", "fd00:16::101", []string{"fd00:16::11", "fd00:16::12"}},
	{"ipip", "172.16.0.102", []string{"172.16.0.11", "172.16.0.12"}},
	{"ipip", "fd00:16::102", []string{"fd00:16::11", "fd00:16::12"}},
}

func testAgentsInTenants(t *testing.T, six bool) {
	u := newUnderlay(t, "vxlan", six)
	var tenants []*agentsTenant
	segments := "segments:\n"
	for _, vni := range []int{5001, 5002} {
		tenant := &agentsTenant{name: fmt.Sprint("vxlan:", vni)}
		tenant.client = u.add(fmt.Sprint("client", vni), vni, "172.16.0.2/24", "fd00:16::2/64")
		hosts := ""
		for n := range 2 {
			server := u.add(fmt.Sprintf("server%d-of-%d", n+1, vni), vni, fmt.Sprintf("172.16.0.1%d/24", n+1), fmt.Sprintf("fd00:16::1%d/64", n+1))
			serveLines(t, server.Host, server.Name)
			tenant.servers = append(tenant.servers, server)
			for _, address := range []string{fmt.Sprintf("172.16.0.1%d", n+1), fmt.Sprintf("fd00:16::1%d", n+1)} {
				hosts += fmt.Sprintf("{address: '%s', mac: '%s', vtep: '%v'}, ", address, server.port.MAC, server.vtep)
			}
		}
		segments += fmt.Sprintf("- {id: '%s', addresses: [172.16.0.3, 'fd00:16::3'], hosts: [%s]}\n", tenant.name, hosts)
		tenants = append(tenants, tenant)
	}
	services := func(tenant *agentsTenant, states ...string) (text string) {
		for i, w := range insideWays {
			text += fmt.Sprintf("- {name: s%d-of-%s, segment: '%s', vip: '%s', protocol: tcp, port: %d, mode: %s, health: {kind: tcp, interval: 200ms, panic: 0}, backends: [", i, tenant.name[6:], tenant.name, w.vip, linesPort, w.mode)
			for n, member := range w.members {
				state := "active"
				if n < len(states) && states[n] != "" {
					state = states[n]
				}
				text += fmt.Sprintf("{name: b%d, address: '%s', segment: '%s', state: %s}, ", n+1, member, tenant.name, state)
			}
			text += "]}\n"
		}
		return text
	}
	for _, tenant := range tenants {
		for _, server := range tenant.servers {
			tenant.agents = append(tenant.agents, startDaemon(t, server.Host, "agent",
				"directors: [172.16.0.3, 'fd00:16::3']\nagent: {interfaces: [eth0]}\nservices:\n"+services(tenant)))
		}
	}
	file := func(states ...string) string {
		return u.file(services(tenants[0], states...)+services(tenants[1])) + segments
	}
	director := startDaemon(t, u.director, "run", file())
	director.waitFor("all backends to be healthy", func() bool {
		list, err := director.services()
		return err == nil && !slices.ContainsFunc(list, func(s model.ServiceStatus) bool {
			return slices.ContainsFunc(s.Backends, func(b model.BackendStatus) bool { return b.Health.State != model.HealthUp })
		})
	})
	open := map[*agentsTenant][]*session{}
	for _, tenant := range tenants {
		for _, w := range insideWays {
			for range 10 {
				s := tenant.open(t, w)
				if w.mode == "gue" {
					open[tenant] = append(open[tenant], s)
				}
			}
		}
	}
	passed := func(tenant *agentsTenant) uint64 { return countedBy(slices.Values(tenant.agents), "passed_on") }
	before := passed(tenants[0])
	director.edit(file("draining"))
	director.ready()
	moved := 0
	for _, tenant := range tenants {
		for _, s := range open[tenant] {
			if got := s.ask(t); got != s.backend {
				t.Fatalf("%s has a connection of %s", got, s.backend)
			}
			if tenant == tenants[0] && s.backend == tenant.servers[0].Name {
				moved++
			}
		}
	}
	if after := passed(tenants[0]); moved == 0 || after < before+uint64(moved) {
		t.Errorf("%d connections are on a backend that drains, and the agents passed on %d packets", moved, after-before)
	}
	if n := passed(tenants[1]); n != 0 {
		t.Errorf("the agents of a tenant without a change passed on %d packets", n)
	}
	for _, tenant := range tenants {
		for _, never := range []string{"decap_last_resort", "drop_row_malformed", "drop_not_peer"} {
			if n := countedBy(slices.Values(tenant.agents), never); n > 0 {
				t.Errorf("the agents of %s count %d packets as %s", tenant.name, n, never)
			}
		}
	}
}

// open opens a connection to a VIP, and asks which server has it: one of the tenant's.
func (tenant *agentsTenant) open(t *testing.T, w insideWay) *session {
	t.Helper()
	var conn net.Conn
	err := tenant.client.Do(func() error {
		return netlab.UntilFree(func() (err error) {
			conn, err = new(net.Dialer).DialContext(t.Context(), "tcp", netip.AddrPortFrom(netip.MustParseAddr(w.vip), linesPort).String())
			return err
		})
	})
	if err != nil {
		t.Fatalf("%s of %s: %v", w, tenant.name, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s := &session{Conn: conn, lines: bufio.NewReader(conn)}
	s.backend = s.ask(t)
	if !slices.ContainsFunc(tenant.servers, func(server vm) bool { return server.Name == s.backend }) {
		t.Fatalf("%s of %s: %s has the connection", w, tenant.name, s.backend)
	}
	return s
}
