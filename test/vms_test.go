package test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
	"weir.io/weir/lab/netlab"
)

// Two tenants have the same VIP, the same members and the same client, each in a VLAN of its own, or in VXLAN. Their
// agents run in the members' VMs, which reach the director's API and nothing else of the provider's. What one tenant's
// agents report decides about its own generations alone, also if they lie.
//
//	red-client, red-vm1, red-vm2    --- red  --- switch --- director --- store (an etcd, in the first part)
//	blue-client, blue-vm1, blue-vm2 --- blue ---               |
//	the VMs ----------------------------------------------- access
func TestAgentsInTenantsVMs(t *testing.T) {
	for name, of := range map[string]vmsAre{
		"in VLANs, a director with an etcd": {kind: "vlan", shared: true},
		"in VLANs, a director without":      {kind: "vlan"},
		"in VXLAN, a director with an etcd": {kind: "vxlan", shared: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			agentsInVMs(t, of)
		})
	}
}

const (
	vmsVIP      = "172.16.0.100"
	vmsDirector = "172.16.0.3" // of the director's tunnels
	accessURL   = "https://10.9.0.1:6083"

	otherAccessURL = "https://10.9.0.2:6083"
)

// vmsAre is what differs between labs.
type vmsAre struct {
	kind   string // of the tenants' networks
	shared bool   // the director has an etcd
	loads  bool   // agents report loads instead of connections
	second bool   // there is another director, with the same etcd
}

// vmLab is what the tenants and the director have.
type vmLab struct {
	*testing.T
	vmsAre
	lab      *netlab.Lab
	director *netlab.Host
	switches *netlab.Host // of the VLANs
	running  *daemon
	other    *daemon // the second one
	keys     string  // of the director
	etcd     string  // the same
	endpoint string  // of etcd
	tenants  map[string]*tenantLab
}

// tenantLab is one tenant's network.
type tenantLab struct {
	name     string
	segment  model.Segment
	client   *netlab.Host
	vms      []*netlab.Host
	places   []string // of the VMs, in the director's file
	tokens   []string // files
	agents   []*daemon
	sessions []*session
}

func newVMLab(t *testing.T, of vmsAre) *vmLab {
	t.Helper()
	l := &vmLab{T: t, vmsAre: of, tenants: map[string]*tenantLab{}}
	add := l.inVLANs
	if of.kind == "vxlan" {
		add = l.inVXLAN
	}
	guest := add()
	access := l.lab.Switch("access")
	l.lab.Link(l.director, access, netlab.LinkOptions{A: []string{"10.9.0.1/24"}})
	if of.shared {
		store := l.lab.Host("store")
		stores := l.lab.Switch("stores")
		l.lab.Link(store, stores, netlab.LinkOptions{A: []string{"10.8.0.2/24"}})
		l.lab.Link(l.director, stores, netlab.LinkOptions{A: []string{"10.8.0.1/24"}})
		if of.second {
			l.another(access, stores)
		}
		etcd := etcdlab.New(t, etcdlab.Options{Members: 1, Address: "10.8.0.2", On: store.Do})
		l.etcd, l.endpoint = fmt.Sprintf(", store: {etcd: {endpoints: ['%s']}}", etcd.Endpoints[0]), etcd.Endpoints[0]
	}
	l.certify()
	number := 10
	for name, id := range map[string]string{"red": "100", "blue": "200"} {
		tenant := &tenantLab{name: name}
		if err := tenant.segment.UnmarshalText([]byte(of.kind + ":" + id)); err != nil {
			t.Fatal(err)
		}
		l.tenants[name] = tenant
		tenant.client, _ = guest(tenant, "client", "172.16.0.2")
		for i := range 2 {
			vm, place := guest(tenant, fmt.Sprint("vm", i+1), fmt.Sprintf("172.16.0.%d", 11+i))
			number++
			l.lab.Link(vm, access, netlab.LinkOptions{A: []string{fmt.Sprintf("10.9.0.%d/24", number)}})
			serveLines(t, vm, vm.Name)
			tenant.vms, tenant.places = append(tenant.vms, vm), append(tenant.places, place)
			tenant.tokens = append(tenant.tokens, write(t, vm, "token", vm.Name+"-0123456789abcdef"))
		}
	}
	l.running = launchDaemon(t, l.director, "run", l.text())
	endpoints := "'" + accessURL + "'"
	if l.other != nil {
		l.other.edit(l.textOfOther())
		l.other.start()
		endpoints += ", '" + otherAccessURL + "'"
	}
	for _, tenant := range l.tenants {
		for i, vm := range tenant.vms {
			tenant.agents = append(tenant.agents, launchDaemon(t, vm, "agent", fmt.Sprintf(
				"agent: {interfaces: [eth0], store: {directors: {endpoints: [%s], ca: %s, token-file: %s}}}\n%sdirectors: [%s]\nservices:\n%s",
				endpoints, l.path("api.pem"), tenant.tokens[i], l.asks(), vmsDirector, l.service(tenant, false))))
		}
	}
	for _, tenant := range l.tenants {
		for _, a := range tenant.agents {
			a.ready()
		}
	}
	l.running.ready() // by the policy of loads, for which agents report
	if of.loads {
		return l
	}
	netlab.WaitUpTo(t, time.Minute, "reports of all agents", func() bool { return l.running.directorStatus().Agents.Reporting == 4 })
	return l
}

// inVLANs makes the director, and returns a function that adds a guest to a tenant's network: what it sends and gets
// has no tag.
func (l *vmLab) inVLANs() func(tenant *tenantLab, name, address string) (guest *netlab.Host, place string) {
	l.lab = netlab.ForTest(l.T)
	lan := l.lab.Switch("switch")
	l.director, l.switches = l.lab.Host("director"), lan
	directorPort := l.lab.Link(l.director, lan, netlab.LinkOptions{XDP: true, Tagged: true, A: lanPrefixes(directorHost)}).A
	l.keys = fmt.Sprintf("interfaces: [eth0], tunnel-source: [%s]", vmsDirector)
	hypervisors := map[*tenantLab]*netlab.Host{}
	return func(tenant *tenantLab, name, address string) (*netlab.Host, string) {
		if hypervisors[tenant] == nil {
			hypervisors[tenant] = l.lab.Switch(tenant.name)
			joinVLAN(l.T, l.lab.Link(hypervisors[tenant], lan, netlab.LinkOptions{Tagged: true}).A, uint16(tenant.segment.ID), true)
		}
		guest := l.lab.Host(tenant.name + "-" + name)
		port := l.lab.Link(guest, hypervisors[tenant], netlab.LinkOptions{XDP: true, A: []string{address + "/24"}}).A
		guest.Route(vmsVIP+"/32", vmsDirector) // members have the VIP on lo
		guest.Neighbor("eth0", vmsDirector, directorPort.MAC)
		return guest, fmt.Sprintf("mac: '%s'", port.MAC)
	}
}

// inVXLAN is the same where each guest has a hypervisor of its own.
func (l *vmLab) inVXLAN() func(tenant *tenantLab, name, address string) (guest *netlab.Host, place string) {
	u := newUnderlay(l.T, "vxlan", false)
	l.lab, l.director = u.lab, u.director
	l.keys = fmt.Sprintf("interfaces: [eth0], vtep: {addresses: ['%v'], peers: ['%v']}", u.vtep(directorHost), lanPrefix(false))
	return func(tenant *tenantLab, name, address string) (*netlab.Host, string) {
		guest := u.add(tenant.name+"-"+name, int(tenant.segment.ID), address+"/24")
		return guest.Host, fmt.Sprintf("mac: '%s', vtep: '%v'", guest.port.MAC, guest.vtep)
	}
}

func (l *vmLab) path(name string) string { return l.director.Dir() + "/" + name }

// certify makes the certificate of the director's API.
func (l *vmLab) certify() {
	l.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		l.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "director"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:  x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(10, 9, 0, 1), net.IPv4(10, 9, 0, 2)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		l.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		l.Fatal(err)
	}
	write(l.T, l.director, "api.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(l.T, l.director, "api.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
}

// asks is the part of all files that asks for loads.
func (l *vmLab) asks() string {
	if l.loads {
		return "loads: {api: true}\n"
	}
	return ""
}

// service is the tenant's, in which some members drain. Only the director needs to know where they are.
func (l *vmLab) service(n *tenantLab, places bool, draining ...int) string {
	mode := "gue"
	if l.loads {
		mode = "l2dsr\n  policy: least-conn"
	}
	text := fmt.Sprintf("- name: %s\n  segment: %s\n  vip: %s\n  protocol: tcp\n  port: %d\n  mode: %s\n  retention: %v\n  backends:\n", n.name, n.segment, vmsVIP, linesPort, mode, shortDrain)
	for i := range n.vms {
		text += fmt.Sprintf("  - {name: vm%d, address: 172.16.0.%d, segment: '%s'", i+1, 11+i, n.segment)
		if places {
			text += ", " + n.places[i]
		}
		if slices.Contains(draining, i) {
			text += ", state: draining"
		}
		text += "}\n"
	}
	return text
}

// text is the director's file, in which each tenant's members drain.
func (l *vmLab) text(draining ...int) string {
	clients, services, segments := "", "", ""
	for _, name := range []string{"red", "blue"} {
		tenant := l.tenants[name]
		for i := range tenant.vms {
			clients += fmt.Sprintf("  - {name: %s-vm%d, role: agent, addresses: [172.16.0.%d], segment: '%s', token-file: %s}\n", name, i+1, 11+i, tenant.segment, tenant.tokens[i])
		}
		if l.kind == "vxlan" {
			segments += fmt.Sprintf("- {id: '%s', addresses: [%s]}\n", tenant.segment, vmsDirector)
		}
		services += l.service(tenant, true, draining...)
	}
	if segments != "" {
		segments = "segments:\n" + segments
	}
	return l.asks() + fmt.Sprintf("director: {%s%s}\ndirectors: [%s]\napi:\n  listen: ['10.9.0.1:6083']\n  cert: %s\n  key: %s\n  clients:\n%sservices:\n%s%s",
		l.keys, l.etcd, vmsDirector, l.path("api.pem"), l.path("api.key"), clients, services, segments)
}

// another makes the second director. No packet comes to it, but it has the same services.
func (l *vmLab) another(access, stores *netlab.Host) {
	h := l.lab.Host("other")
	l.lab.Link(h, l.switches, netlab.LinkOptions{XDP: true, Tagged: true, A: lanPrefixes(otherDirector)})
	l.lab.Link(h, access, netlab.LinkOptions{A: []string{"10.9.0.2/24"}})
	l.lab.Link(h, stores, netlab.LinkOptions{A: []string{"10.8.0.3/24"}})
	l.other = newDaemon(l.T, h, "run", "services: []\n")
}

// textOfOther is the second director's file.
func (l *vmLab) textOfOther(draining ...int) string {
	return strings.Replace(l.text(draining...), "listen: ['10.9.0.1:6083']", "listen: ['10.9.0.2:6083']", 1)
}

// open opens connections of a tenant's client.
func (l *vmLab) open(tenant *tenantLab, count int) {
	l.Helper()
	for range count {
		var conn net.Conn
		err := tenant.client.Do(func() (err error) {
			conn, err = net.DialTimeout("tcp", fmt.Sprintf("%s:%d", vmsVIP, linesPort), 10*time.Second)
			return err
		})
		if err != nil {
			l.Fatalf("%s: %v", tenant.name, err)
		}
		l.Cleanup(func() { _ = conn.Close() })
		s := &session{Conn: conn, lines: bufio.NewReader(conn)}
		s.backend = s.ask(l.T)
		if !strings.HasPrefix(s.backend, tenant.name+"-") {
			l.Fatalf("the client of %s gets an answer of %s", tenant.name, s.backend)
		}
		tenant.sessions = append(tenant.sessions, s)
	}
}

// stay checks that every connection is where it was.
func (l *vmLab) stay(tenant *tenantLab, when string) {
	l.Helper()
	for _, s := range tenant.sessions {
		if got := s.ask(l.T); got != s.backend {
			l.Fatalf("%s: %s has a connection of %s", when, got, s.backend)
		}
	}
}

func (l *vmLab) log(tenant *tenantLab) model.LogStatus {
	l.Helper()
	return l.logAt(l.running, tenant)
}

func (l *vmLab) logAt(d *daemon, tenant *tenantLab) model.LogStatus {
	l.Helper()
	services, err := d.services()
	if err != nil {
		l.Fatal(err)
	}
	at := slices.IndexFunc(services, func(s model.ServiceStatus) bool { return s.Name == tenant.name })
	if at < 0 {
		l.Fatalf("the director has no service %s: %v", tenant.name, services)
	}
	return services[at].Log
}

// waitForLog waits for the effect of agents' reports on a tenant's log: two looks at the sockets, a report, and a look at
// that, each some seconds apart.
func (l *vmLab) waitForLog(tenant *tenantLab, because string, is func(model.LogStatus) bool) {
	l.Helper()
	netlab.WaitUpTo(l.T, 90*time.Second, "the log of "+tenant.name+" to show that "+because, func() bool { return is(l.log(tenant)) })
}

// lie sends a report with the token of a tenant's first VM, and returns the status and the answer.
func (l *vmLab) lie(of *tenantLab, report model.AgentReport) string {
	l.Helper()
	text, err := json.Marshal(&report)
	if err != nil {
		l.Fatal(err)
	}
	body := write(l.T, of.vms[0], "lie.json", string(text))
	return on(l.T, of.vms[0], "curl", "--silent", "--max-time", "10", "--cacert", l.path("api.pem"), "--header", "Authorization: Bearer "+of.name+"-vm1-0123456789abcdef",
		"--header", "Content-Type: application/json", "--request", "PUT", "--data-binary", "@"+body, "--write-out", " %{http_code}", accessURL+"/v1/report")
}

func agentsInVMs(t *testing.T, are vmsAre) {
	l := newVMLab(t, are)
	red, blue := l.tenants["red"], l.tenants["blue"]
	if are.shared {
		if out, err := tryOn(t, red.vms[0], "curl", "--silent", "--max-time", "2", l.endpoint+"/version"); err == nil {
			t.Fatalf("a tenant's VM reaches the etcd: %s", out)
		}
	}
	for _, tenant := range []*tenantLab{red, blue} {
		l.open(tenant, 30)
	}
	l.running.edit(l.text(0))
	l.running.ready()
	began := time.Now()
	waitFor(t, "the retention to pass that a connection has to outlive", func() bool { return time.Since(began) > 3*shortDrain })
	kept := func(log model.LogStatus) bool { return log.Generations == 2 && log.Kept > 0 }
	for _, tenant := range []*tenantLab{red, blue} {
		l.waitForLog(tenant, "slots are kept for connections", kept)
		l.stay(tenant, "a member drains")
		if n := countedBy(slices.Values(tenant.agents), "passed_on"); n == 0 {
			t.Errorf("the agents of %s have passed on no packet of connections of the member that drains", tenant.name)
		}
	}
	for _, s := range red.sessions {
		_ = s.Close()
	}
	red.sessions = nil
	l.waitForLog(red, "its connections have ended", func(log model.LogStatus) bool { return log.Generations == 1 })
	if log := l.log(blue); !kept(log) {
		t.Errorf("after the connections of red's member have ended the log of blue is %+v", log)
	}
	l.stay(blue, "the other tenant's connections have ended")

	// The agent of red's first VM is its tenant's own from now on.
	red.agents[0].end(syscall.SIGKILL)
	of := func(name string, used bool) model.AgentReport {
		tenant := l.tenants[name]
		segment := tenant.segment
		vip := lanAddress(1, false)
		if err := vip.UnmarshalText([]byte(vmsVIP)); err != nil {
			t.Fatal(err)
		}
		r := model.AgentReport{Segment: segment, Taken: time.Now().UTC()}
		if err := r.Backend.UnmarshalText([]byte("172.16.0.11")); err != nil {
			t.Fatal(err)
		}
		for _, affinity := range model.UsualAffinities {
			s := model.ReportedService{ServiceID: model.ServiceID{Segment: segment, VIP: vip, Protocol: model.TCP, Port: model.PortRange{First: linesPort, Last: linesPort}},
				Affinity: affinity, Used: model.NewSlotSet(1 << 14)}
			for i := range 1 << 14 {
				if used {
					s.Used.Add(i)
				}
			}
			r.Services = append(r.Services, s)
		}
		return r
	}
	mixed := of("red", false)
	mixed.Services = append(mixed.Services, of("blue", false).Services...)
	for _, c := range []struct { // in the order in which they are taken: an older one than the last is refused
		what   string
		report model.AgentReport
		want   string
	}{
		{"says that the other tenant's member has no connections", of("blue", false), "403"},
		{"says so in a report of its own", mixed, "403"},
		{"says that its own has connections everywhere", of("red", true), "200"},
	} {
		if got := l.lie(red, c.report); !strings.HasSuffix(got, " "+c.want) {
			t.Errorf("an agent that %s is answered %s, want %s", c.what, got, c.want)
		}
	}
	if got := l.running.directorStatus().Agents; got.Refused < 2 || got.Taken < 4 {
		t.Errorf("the director counts %+v", got)
	}
	lied := time.Now()
	waitFor(t, "the director to have looked at what agents report", func() bool { return time.Since(lied) > 12*time.Second })
	if log := l.log(blue); !kept(log) {
		t.Errorf("after lies of red's agent the log of blue is %+v", log)
	}
	l.stay(blue, "the other tenant's agent lies")
	for _, s := range blue.sessions {
		_ = s.Close()
	}
	l.waitForLog(blue, "its connections have ended, too", func(log model.LogStatus) bool { return log.Generations == 1 })
}

// Agents in tenants' VMs report loads by the API, without a key that other tenants have. A member that has more
// connections than the director knows of gets no new ones while another has less to do, and the other tenant's member of
// the same address gets its share.
func TestLoadsFromTenantsVMs(t *testing.T) {
	t.Parallel()
	l := newVMLab(t, vmsAre{kind: "vlan", loads: true})
	red, blue := l.tenants["red"], l.tenants["blue"]
	status := func(tenant *tenantLab) (of model.ServiceStatus) {
		t.Helper()
		services, err := l.running.services()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range services {
			if s.Name == tenant.name {
				of = s
			}
		}
		return of
	}
	reported := func(tenant *tenantLab, is func(*model.ServiceStatus) bool) func() bool {
		return func() bool {
			s := status(tenant)
			return s.Loads != nil && !s.Loads.Degraded && s.Loads.Reported == 2 && s.Policy == model.LeastConn && is(&s)
		}
	}
	any := func(*model.ServiceStatus) bool { return true }
	for _, tenant := range l.tenants {
		l.running.waitFor("place connections of "+tenant.name+" by the loads of both members", reported(tenant, any))
	}
	const many, few = 40, 10
	red.client.Route(vmsVIP+"/32", "172.16.0.11") // to the first member, past the director
	l.open(red, many)
	red.client.Route(vmsVIP+"/32", vmsDirector)
	l.running.waitFor("hear of connections that came past it", reported(red, func(s *model.ServiceStatus) bool {
		return s.Backends[0].Load != nil && s.Backends[0].Load.Connections >= many
	}))
	l.open(red, few)
	for _, s := range red.sessions[many:] {
		if s.backend != "red-vm2" {
			t.Errorf("while red-vm1 has %d connections more, %s gets a new one", many, s.backend)
		}
	}
	l.open(blue, few)
	got := map[string]int{}
	for _, s := range blue.sessions {
		got[s.backend]++
	}
	if got["blue-vm1"] < few/4 || got["blue-vm2"] < few/4 {
		t.Errorf("the other tenant's members get %v", got)
	}
	if s := red.agents[0].agentStatus().Loads; s == nil || s.Known != 1 || s.Sent == 0 || s.Problem != "" {
		t.Errorf("an agent says of its loads %+v", s)
	}
	red.agents[1].end(syscall.SIGKILL)
	red.agents[0].end(syscall.SIGKILL)
	l.running.waitFor("place red's connections without loads", func() bool { s := status(red); return s.Loads != nil && s.Loads.Degraded })
	if s := status(blue); s.Loads == nil || s.Loads.Degraded {
		t.Errorf("without red's agents the loads of blue are %+v", s.Loads)
	}
}

// Agents in VMs report to one of two directors that share an etcd, and both come to know it. When that one is away they
// report to the other one, and list the first as a problem until it is back.
func TestAgentsInVMsReportToAGroup(t *testing.T) {
	t.Parallel()
	l := newVMLab(t, vmsAre{kind: "vlan", shared: true, second: true})
	red := l.tenants["red"]
	l.other.ready()
	netlab.WaitUpTo(t, time.Minute, "both directors to have the reports of all agents", func() bool { return l.other.directorStatus().Agents.Reporting == 4 })
	l.open(red, 30)
	l.running.edit(l.text(0))
	l.other.edit(l.textOfOther(0))
	l.running.ready()
	l.other.ready()
	began := time.Now()
	waitFor(t, "the retention to pass that a connection has to outlive", func() bool { return time.Since(began) > 3*shortDrain })
	for name, d := range map[string]*daemon{"the first director": l.running, "the second": l.other} {
		netlab.WaitUpTo(t, 90*time.Second, name+" to keep slots for connections", func() bool {
			log := l.logAt(d, red)
			return log.Generations == 2 && log.Kept > 0
		})
	}
	var reports []model.AgentDirector
	netlab.WaitUpTo(t, 90*time.Second, "the first member's agent to report to one of them alone, because they share", func() bool {
		reports = red.agents[0].agentStatus().Directors
		return reports[0].Taken != reports[1].Taken
	})
	gone, left, away := l.running, l.other, 0
	if reports[1].Taken > reports[0].Taken {
		gone, left, away = l.other, l.running, 1
	}
	defer func() {
		if t.Failed() {
			t.Logf("the agent says of its directors %+v", red.agents[0].agentStatus().Directors)
		}
	}()
	gone.end(syscall.SIGKILL) // what the first one has pinned forwards
	l.stay(red, "a director's process is gone")
	for _, s := range red.sessions {
		_ = s.Close()
	}
	netlab.WaitUpTo(t, 90*time.Second, "the other director to hear that the connections have ended", func() bool { return l.logAt(left, red).Generations == 1 })
	problems := func() (ofGone, ofLeft string) {
		d := red.agents[0].agentStatus().Directors
		return d[away].Problem, d[1-away].Problem
	}
	netlab.WaitUpTo(t, 90*time.Second, "the agent to list the director that is away, and not the other", func() bool {
		ofGone, ofLeft := problems()
		return strings.Contains(ofGone, "connection refused") && ofLeft == ""
	})
	gone.start()
	gone.ready()
	netlab.WaitUpTo(t, 3*time.Minute, "the first director to hear of it, too, and the agent to report to it", func() bool {
		ofGone, ofLeft := problems()
		return l.logAt(gone, red).Generations == 1 && ofGone == "" && ofLeft == ""
	})
}
