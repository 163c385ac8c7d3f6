package test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// apartTenant is a tenant of TestTenantsStayApart: its hosts have the addresses that every other tenant's have.
type apartTenant struct {
	name    string // its segment
	ports   model.PortRange
	client  vm
	servers []vm
	modes   []string
	keys    string   // more of its services, in all modes but gue
	learned bool     // the file does not say where its hosts are
	state   []string // of each server, as a backend
	extra   bool     // it has one more service at the moment

	asked, foreign atomic.Uint64
	mu             sync.Mutex
	failures       []string
}

const apartVIP = "172.16.0.100"

// apartPort is the port of a tenant's service in a mode.
func apartPort(mode string) int {
	return 1000 + slices.Index([]string{"l2dsr", "nat", "snat", "ipip", "gue", "extra"}, mode)
}

// Tenants in no segment, in VLANs, in VXLAN and in Geneve have the same VIP, the same clients and the same members,
// one of which has the director's own address. While backends drain and come back and services come and go, no
// connection fails, and no host gets a packet of another tenant: each client has ports of its own, and each host
// counts what is neither to nor from its tenant's. WEIR_TENANTS says for how long; make tenants takes ten minutes.
//
//	hosts of none, vlan:7, vlan:8 --- switch --- director
//	hosts of vxlan:5001, vxlan:5002 --- hypervisors ---
//	hosts of geneve:5001, geneve:5002 --- Open vSwitch ---
func TestTenantsStayApart(t *testing.T) {
	t.Parallel()
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv("WEIR_TENANTS"), "10s"))
	if err != nil {
		t.Fatal(err)
	}
	u := newUnderlay(t, "vxlan", false)
	u.director.Address("eth0", "172.16.0.11/24") // the first member's in all tenants' networks
	tenants := apartTenants(u, 1)
	for _, tenant := range tenants {
		tenant.prepare(t, u, tenants)
	}
	file := func() string { return apartFile(u, tenants) }
	director := startDaemon(t, u.director, "run", file())
	director.waitFor("find all backends healthy", director.allUp)
	end := make(chan struct{})
	var callers sync.WaitGroup
	for _, tenant := range tenants {
		for _, mode := range tenant.modes {
			callers.Go(func() { tenant.call(mode, end) })
			callers.Go(func() { tenant.hold(mode, end) })
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	changes := 0
	for began := time.Now(); time.Since(began) < lasts; changes++ {
		tenants[random.IntN(len(tenants))].change(random)
		director.edit(file())
		director.ready()
	}
	close(end)
	callers.Wait()
	for _, tenant := range tenants {
		t.Logf("%s: %d questions were answered, %d changes", tenant.name, tenant.asked.Load(), changes)
		tenant.wantApart(t)
	}
	wantCounting(t, tenants[0], tenants[1])
}

// allUp reports whether probes have found all backends healthy.
func (d *daemon) allUp() bool {
	list, err := d.services()
	return err == nil && !slices.ContainsFunc(list, func(s model.ServiceStatus) bool {
		return slices.ContainsFunc(s.Backends, func(b model.BackendStatus) bool { return b.Health.State != model.HealthUp })
	})
}

// wantCounting fails unless hosts of a tenant count a packet with another tenant's port.
func wantCounting(t *testing.T, of, other *apartTenant) {
	t.Helper()
	conn, err := of.dial(of.servers[0].Host, fmt.Sprintf("127.0.0.1:%d", apartPort(of.modes[0])), int(other.ports.Last))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if foreignPackets(t, of.servers[0].Host) == 0 {
		t.Error("a packet from another tenant's port was not counted")
	}
}

// apartTenants plugs in the hosts of all tenants; those in Geneve have that many servers.
func apartTenants(u *underlay, inGeneve int) []*apartTenant {
	u.Helper()
	var tenants []*apartTenant
	plug := func(tenant *apartTenant, vlan uint16, members ...string) {
		host := func(name, address string) vm {
			h := u.lab.Host(name + "-" + strings.ReplaceAll(tenant.name, ":", "-"))
			link := u.lab.Link(h, u.lan, netlab.LinkOptions{XDP: true, MTU: underlayMTU - 100, A: []string{address + "/24"}})
			if err := u.lab.Err(); err != nil {
				u.Fatal(err)
			}
			if vlan != 0 {
				leave, err := link.B.Access(vlan)
				if err != nil {
					u.Fatal(err)
				}
				u.Cleanup(leave)
			}
			return vm{Host: h, port: link.A}
		}
		tenant.client = host("client", "172.16.0.2")
		tenant.client.Neighbor("eth0", apartVIP, u.port.MAC)
		for i, member := range members {
			tenant.servers = append(tenant.servers, host(fmt.Sprint("server", i+1), member))
		}
	}
	plug(addApart(&tenants, "none", 2, "l2dsr"), 0, "172.16.0.12", "172.16.0.13")
	for _, id := range []uint16{7, 8} {
		plug(addApart(&tenants, fmt.Sprint("vlan:", id), 2, "l2dsr", "ipip", "gue"), id, "172.16.0.11", "172.16.0.12")
	}
	addApartOverlays(u, &tenants, inGeneve)
	return tenants
}

// addApart adds a tenant whose client has ports that no other one's has.
func addApart(tenants *[]*apartTenant, name string, servers int, modes ...string) *apartTenant {
	first := uint16(10000 + 2000*len(*tenants)) // below those of the director's probes
	tenant := &apartTenant{name: name, ports: model.PortRange{First: first, Last: first + 1999}, modes: modes, state: make([]string, servers)}
	*tenants = append(*tenants, tenant)
	return tenant
}

// addApartOverlays plugs in the hosts of two tenants in VXLAN, with two servers each, and of two in Geneve.
func addApartOverlays(u *underlay, tenants *[]*apartTenant, inGeneve int) {
	u.Helper()
	address := func(n int) string { return fmt.Sprintf("172.16.0.%d/24", 11+n) }
	for _, vni := range []int{5001, 5002} {
		tenant := addApart(tenants, fmt.Sprint("vxlan:", vni), 2, "l2dsr", "nat", "snat", "ipip", "gue")
		tenant.client = u.add(fmt.Sprint("client-vxlan-", vni), vni, "172.16.0.2/24")
		for n := range tenant.state {
			tenant.servers = append(tenant.servers, u.add(fmt.Sprintf("server%d-vxlan-%d", n+1, vni), vni, address(n)))
		}
	}
	u.kind, u.hosts = "geneve", 20 // behind the director's number
	for _, vni := range []int{5001, 5002} {
		tenant := addApart(tenants, fmt.Sprint("geneve:", vni), inGeneve, "l2dsr", "nat", "snat")
		var peers []int
		for n := range 1 + inGeneve {
			peers = append(peers, u.hosts+1+n)
		}
		tenant.client = u.addOVS(fmt.Sprint("client-geneve-", vni), vni, peers, "172.16.0.2/24")
		for n := range tenant.state {
			tenant.servers = append(tenant.servers, u.addOVS(fmt.Sprintf("server%d-geneve-%d", n+1, vni), vni, peers, address(n)))
		}
	}
}

// isOverlay says whether the tenant's network is in VXLAN or Geneve.
func (tenant *apartTenant) isOverlay() bool { return tenant.client.vtep.IsValid() }

// address is a server's.
func (tenant *apartTenant) address(server int) string {
	if tenant.name == "none" {
		server++ // the director has the first one
	}
	return fmt.Sprintf("172.16.0.%d", 11+server)
}

// prepare starts what the tenant's hosts run.
func (tenant *apartTenant) prepare(t *testing.T, u *underlay, all []*apartTenant) {
	t.Helper()
	client := tenant.client
	client.Sysctl("net.ipv4.ip_local_port_range", fmt.Sprintf("%d %d", tenant.ports.First, tenant.ports.Last-1))
	client.Sysctl("net.ipv4.tcp_tw_reuse", "1")
	for _, host := range append(slices.Clone(tenant.servers), client) {
		rules := "table inet apart {\n counter foreign {}\n chain arrived {\n  type filter hook prerouting priority raw; policy accept;\n"
		for _, other := range all {
			if other != tenant {
				rules += fmt.Sprintf("  tcp sport %[1]s counter name foreign\n  tcp dport %[1]s counter name foreign\n", other.ports)
			}
		}
		on(t, host.Host, "nft", "-f", write(t, host.Host, "apart.nft", rules+" }\n}\n"))
	}
	for _, server := range tenant.servers {
		server.Address("lo", apartVIP+"/32")
		server.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
		server.Sysctl("net.ipv4.conf.all.arp_announce", "2")
		if tenant.isOverlay() { // the director is the way back in nat, from a port that l2dsr does not have
			on(t, server.Host, "ip", "route", "add", "172.16.0.2/32", "via", "172.16.0.3", "table", "77")
			on(t, server.Host, "ip", "rule", "add", "ipproto", "tcp", "sport", fmt.Sprint(apartPort("nat")), "lookup", "77")
		}
		for mode := range slices.Values(append([]string{"extra"}, tenant.modes...)) {
			if err := server.Serve("tcp", fmt.Sprintf(":%d", apartPort(mode)), tenant.answer(server.Name)); err != nil {
				t.Fatal(err)
			}
		}
		if slices.Contains(tenant.modes, "gue") {
			startDaemon(t, server.Host, "agent", "directors: [172.16.0.3]\nagent: {interfaces: [eth0]}\nservices:\n"+tenant.services("ipip", "gue"))
		}
	}
}

// services are the tenant's in a file, in some modes.
func (tenant *apartTenant) services(modes ...string) (text string) {
	for _, mode := range modes {
		packets, more := mode, ""
		switch mode {
		case "snat":
			packets, more = "nat", ", snat: true"
		case "extra":
			packets = "l2dsr"
		}
		if mode != "gue" {
			more += tenant.keys
		}
		text += fmt.Sprintf("- {name: %s-%s, segment: '%s', vip: %s, protocol: tcp, port: %d, mode: %s%s, health: {kind: tcp, interval: 500ms, panic: 0}, backends: [",
			mode, strings.ReplaceAll(tenant.name, ":", "-"), tenant.name, apartVIP, apartPort(mode), packets, more)
		for i, server := range tenant.servers {
			text += fmt.Sprintf("{name: b%d, address: %s, segment: '%s', state: %s", i+1, tenant.address(i), tenant.name, cmp.Or(tenant.state[i], "active"))
			if !tenant.learned {
				text += fmt.Sprintf(", mac: '%s'", server.port.MAC)
			}
			if tenant.isOverlay() && !tenant.learned {
				text += fmt.Sprintf(", vtep: '%v'", server.vtep)
			}
			text += "}, "
		}
		text += "]}\n"
	}
	return text
}

// wantApart fails if connections of the tenant have failed, or if one of its hosts has got packets of another tenant.
func (tenant *apartTenant) wantApart(t *testing.T) {
	t.Helper()
	if failed := len(tenant.failures); failed > 0 || tenant.foreign.Load() > 0 || tenant.asked.Load() == 0 {
		t.Errorf("%s: %d questions were answered, %d failed, and %d came from another tenant:\n%s", tenant.name, tenant.asked.Load(), failed, tenant.foreign.Load(),
			strings.Join(tenant.failures[:min(failed, 20)], "\n"))
	}
	for _, host := range append(tenant.servers, tenant.client) {
		if n := foreignPackets(t, host.Host); n > 0 {
			t.Errorf("%s of %s got %d packets of other tenants", host.Name, tenant.name, n)
		}
	}
}

// apartFile is the director's file.
func apartFile(u *underlay, tenants []*apartTenant) string {
	services, segments := "", "segments:\n"
	for _, tenant := range tenants {
		services += tenant.services(tenant.modes...)
		if tenant.extra {
			services += tenant.services("extra")
		}
		switch {
		case tenant.learned:
			segments += fmt.Sprintf("- {id: '%s', addresses: [172.16.0.3]}\n", tenant.name)
		case tenant.isOverlay():
			segments += fmt.Sprintf("- {id: '%s', addresses: [172.16.0.3], hosts: [{address: 172.16.0.2, mac: '%s', vtep: '%v'}]}\n", tenant.name, tenant.client.port.MAC, tenant.client.vtep)
		case tenant.name != "none":
			segments += fmt.Sprintf("- {id: '%s', addresses: [172.16.0.3]}\n", tenant.name)
		}
	}
	return fmt.Sprintf("director: {interfaces: [eth0], vtep: {addresses: ['%v'], peers: ['%v']}, snat: {addresses: [172.16.0.4], ports: 25000-32767}}\nservices:\n%s%s",
		u.vtep(directorHost), lanPrefix(false), services, segments)
}

// apartHosts says where the hosts are of tenants of which the file does not.
func apartHosts(tenants []*apartTenant) (text string) {
	for _, tenant := range tenants {
		if !tenant.learned {
			continue
		}
		text += fmt.Sprintf("- {id: '%s', hosts: [{address: 172.16.0.2, mac: '%s', vtep: '%v'}", tenant.name, tenant.client.port.MAC, tenant.client.vtep)
		for i, server := range tenant.servers {
			text += fmt.Sprintf(", {address: %s, mac: '%s', vtep: '%v'}", tenant.address(i), server.port.MAC, server.vtep)
		}
		text += "]}\n"
	}
	return text
}

// change drains one of the tenant's backends or takes it back, and adds or removes a service.
func (tenant *apartTenant) change(random *rand.Rand) {
	if len(tenant.state) > 1 && random.IntN(2) == 0 {
		at := random.IntN(len(tenant.state))
		tenant.state[at] = map[string]string{"": "draining", "draining": ""}[tenant.state[at]]
		tenant.state[1-at] = ""
		return
	}
	tenant.extra = !tenant.extra
}

// answer serves a connection: each line is answered with the tenant's and the server's names, and lines of other
// tenants are counted.
func (tenant *apartTenant) answer(server string) func(net.Conn) {
	return func(conn net.Conn) {
		defer conn.Close()
		answerLines(conn, func(line string) string {
			if line != "" && strings.TrimSpace(line) != tenant.name {
				tenant.foreign.Add(1)
			}
			return tenant.name + " " + server
		})
	}
}

func (tenant *apartTenant) dial(from *netlab.Host, to string, port int) (conn net.Conn, err error) {
	err = from.Do(func() error {
		return netlab.UntilFree(func() (err error) {
			dialer := net.Dialer{Timeout: 20 * time.Second}
			if port != 0 { // to bind to any port takes one for all destinations
				dialer.LocalAddr = &net.TCPAddr{Port: port}
			}
			conn, err = dialer.Dial("tcp", to)
			return err
		})
	})
	return conn, err
}

// ask opens a connection, and keeps it for some questions.
func (tenant *apartTenant) ask(mode string, questions int, end <-chan struct{}) error {
	to := netip.AddrPortFrom(netip.MustParseAddr(apartVIP), uint16(apartPort(mode))).String()
	conn, err := tenant.dial(tenant.client.Host, to, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", mode, err)
	}
	defer conn.Close()
	lines, is := bufio.NewReader(conn), ""
	for n := range questions {
		if n > 0 {
			select {
			case <-end:
				return nil
			case <-time.After(100 * time.Millisecond): // the next question
			}
		}
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(conn, tenant.name); err != nil {
			return fmt.Errorf("%s: question %d to %s: %w", mode, n, is, err)
		}
		answer, err := lines.ReadString('\n')
		if err != nil {
			return fmt.Errorf("%s: answer %d of %s: %w", mode, n, is, err)
		}
		of, server, _ := strings.Cut(strings.TrimSpace(answer), " ")
		if of != tenant.name || is != "" && server != is {
			return fmt.Errorf("%s: %q has answered, and before it %q", mode, answer, is)
		}
		is = server
		tenant.asked.Add(1)
	}
	return nil
}

// call opens connections for one question each; hold keeps them.
func (tenant *apartTenant) call(mode string, end <-chan struct{}) { tenant.repeat(mode, 1, end) }
func (tenant *apartTenant) hold(mode string, end <-chan struct{}) { tenant.repeat(mode, 300, end) }

func (tenant *apartTenant) repeat(mode string, questions int, end <-chan struct{}) {
	for {
		select {
		case <-end:
			return
		case <-time.After(50 * time.Millisecond): // the next connection
		}
		if err := tenant.ask(mode, questions, end); err != nil {
			tenant.mu.Lock()
			tenant.failures = append(tenant.failures, err.Error())
			tenant.mu.Unlock()
		}
	}
}

// foreignPackets is how many packets of other tenants a host has got.
func foreignPackets(t *testing.T, h *netlab.Host) uint64 {
	t.Helper()
	var list struct {
		Nftables []struct {
			Counter *struct{ Packets uint64 }
		}
	}
	if err := json.Unmarshal([]byte(on(t, h, "nft", "-j", "list", "counter", "inet", "apart", "foreign")), &list); err != nil {
		t.Fatal(err)
	}
	for _, one := range list.Nftables {
		if one.Counter != nil {
			return one.Counter.Packets
		}
	}
	t.Fatalf("%s has no counter of packets of other tenants", h.Name)
	return 0
}
