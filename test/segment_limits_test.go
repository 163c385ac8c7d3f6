package test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// limitedTenants are two tenants with the same VIP, the same members and the same client on one director:
//
//	a, b, client of red --- hypervisors --- underlay --- director
//	a, b, client of blue --- hypervisors ---
//
// Their services remember flows: each slot may be any backend's.
type limitedTenants struct {
	*underlay
	director *daemon
	clients  map[model.Segment]vm
	backends map[model.Segment]string // of a service, in the file
	failed   []string                 // connections of blue
	lost     []string                 // of its flows in flow memory
}

var (
	redTenant, blueTenant = model.Segment{Kind: model.SegmentVXLAN, ID: 5001}, model.Segment{Kind: model.SegmentVXLAN, ID: 5002}
	tenantsVIP            = netip.MustParseAddrPort("172.16.0.100:7")
)

// tenantsFlows is the room of flow memory: as little as there can be.
const tenantsFlows = 1024

func newLimitedTenants(t *testing.T, limits string) *limitedTenants {
	t.Helper()
	l := &limitedTenants{underlay: newUnderlay(t, "vxlan", false), clients: map[model.Segment]vm{}, backends: map[model.Segment]string{}}
	for _, id := range []model.Segment{redTenant, blueTenant} {
		var backends []string
		for i, name := range []string{"a", "b"} {
			address := fmt.Sprintf("172.16.0.%d", 11+i)
			server := l.add(fmt.Sprint(name, id.ID), int(id.ID), address+"/24")
			server.Address("lo", tenantsVIP.Addr().String()+"/32")
			server.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
			server.Sysctl("net.ipv4.conf.all.arp_announce", "2")
			echoStream(t, server.Host, tenantsVIP)
			backends = append(backends, fmt.Sprintf("{name: %s, address: %s, mac: '%s', vtep: '%v'}", name, address, server.port.MAC, server.vtep))
		}
		l.backends[id] = strings.Join(backends, ", ")
		l.clients[id] = l.add(fmt.Sprint("client", id.ID), int(id.ID), "172.16.0.2/24")
	}
	l.director = startDaemon(t, l.underlay.director, "run", l.text(limits))
	return l
}

// service is a service of a tenant, in a file or a set.
func (l *limitedTenants) service(name string, id model.Segment, port int, more string) string {
	return fmt.Sprintf("- {name: %s, segment: '%s', vip: %s, protocol: tcp, port: %d, mode: l2dsr, policy: least-conn%s, backends: [%s]}\n",
		name, id, tenantsVIP.Addr(), port, more, l.backends[id])
}

// text is the director's file, with limits of red.
func (l *limitedTenants) text(limits string) string {
	// Two of red: one service alone has three quarters of flow memory at most.
	file := l.file(l.service("red", redTenant, 7, "") + l.service("red-too", redTenant, 10, "") + l.service("blue", blueTenant, 7, ""))
	file = strings.Replace(file, "interfaces: [eth0],", fmt.Sprintf("interfaces: [eth0], limits: {flows: %d},", tenantsFlows), 1)
	return file + fmt.Sprintf("segments:\n- {id: '%s', addresses: [172.16.0.3]%s}\n- {id: '%s', addresses: [172.16.0.3]}\n", redTenant, limits, blueTenant)
}

// limit gives red other limits while the director runs.
func (l *limitedTenants) limit(limits string, known func(*model.SegmentLimits) bool) {
	l.Helper()
	l.director.edit(l.text(limits))
	l.director.hangUp()
	l.director.waitFor("have the limits"+limits, func() bool { return known(l.counts(redTenant).Limits) })
}

func (l *limitedTenants) counts(id model.Segment) model.SegmentCounts {
	l.Helper()
	status := mustAskWeir[model.SegmentsStatus](l.director, "segments", "--segment", id.String())
	if len(status.Segments) != 1 {
		l.Fatalf("of %s is said %+v", id, status)
	}
	return status.Segments[0].Counts
}

// remembered are the backends of blue's flows in flow memory, by the client's port.
func (l *limitedTenants) remembered() map[uint16]netip.AddrPort {
	l.Helper()
	list := mustAskWeir[api.Flows](l.director, "flows", "--segment", blueTenant.String(), "--limit", "100000")
	known := map[uint16]netip.AddrPort{}
	for _, f := range list.Flows {
		known[f.Client.Port()] = f.Backend
	}
	return known
}

// open opens connections of blue, and asks through each once.
func (l *limitedTenants) open(count int) (opened []net.Conn) {
	l.Helper()
	client := l.clients[blueTenant]
	for i := range count {
		conn, err := client.DialContext(l.Context(), "tcp", tenantsVIP.String())
		if err != nil {
			l.failed = append(l.failed, fmt.Sprintf("new connection %d: %v", i, err))
			continue
		}
		l.Cleanup(func() { conn.Close() })
		opened = append(opened, conn)
		l.ask(conn, 0)
	}
	return opened
}

func (l *limitedTenants) ask(conn net.Conn, turn uint64) {
	l.Helper()
	if err := ask(conn, rand.New(rand.NewPCG(turn, 7)), turn); err != nil {
		l.failed = append(l.failed, fmt.Sprintf("connection from %v: %v", conn.LocalAddr(), err))
	}
}

// portsOf are the clients' ports of connections.
func portsOf(conns []net.Conn) (ports []uint16) {
	for _, conn := range conns {
		ports = append(ports, conn.LocalAddr().(*net.TCPAddr).AddrPort().Port())
	}
	return ports
}

// flood sends packets to red's services from made-up clients of red's network while something is done.
func (l *limitedTenants) flood(mode string, duration time.Duration, meanwhile func()) (sent int) {
	l.Helper()
	client := l.clients[redTenant]
	at := slices.IndexFunc(floodModes, func(m floodMode) bool { return m.name == mode })
	var running sync.WaitGroup
	ports := []uint16{7, 10}
	counts, failed := make([]int, len(ports)), make([]error, len(ports))
	for i, port := range ports {
		f := &flooder{host: client.Host, out: client.port, to: l.macIn(redTenant), from: netip.MustParsePrefix("172.18.0.0/16"), rate: floodRate / len(ports)}
		running.Go(func() {
			counts[i], failed[i] = f.send(floodModes[at], netip.AddrPortFrom(tenantsVIP.Addr(), port), duration)
		})
	}
	meanwhile()
	running.Wait()
	if err := errors.Join(failed...); err != nil {
		l.Fatal(err)
	}
	return counts[0] + counts[1]
}

// macIn is the director's MAC address in a tenant's network.
func (l *limitedTenants) macIn(id model.Segment) net.HardwareAddr {
	mac := model.VTEPMAC([]netip.Addr{l.vtep(directorHost)}, id)
	return mac[:]
}

// A tenant at each of its limits takes nothing from another one: no connection of that fails or breaks, its flows
// stay in flow memory and new ones come there, and its counters have nothing but its own. The same floods without
// limits leave no place for most of its new flows, may take those of others, so that some of its connections break, and
// all of the flood's packets go on to the first tenant's members.
func TestTenantsAtTheirLimits(t *testing.T) {
	t.Parallel()
	t.Run("limited", func(t *testing.T) { testTenants(t, true) })
	t.Run("not limited", func(t *testing.T) { testTenants(t, false) })
}

func testTenants(t *testing.T, limited bool) {
	limits := func(text string) string {
		if !limited {
			return ""
		}
		return ", limits: {" + text + "}"
	}
	l := newLimitedTenants(t, limits("services: 3, backends: 7, ring-memory: 65536, flows: 320"))
	defer func() {
		if t.Failed() {
			t.Logf("the director logged:\n%s", l.director.logged())
		}
	}()
	for id, service := range map[model.Segment]string{redTenant: "red", blueTenant: "blue"} {
		e := mustAskWeir[model.Explanation](l.director, "explain", "172.16.0.2:5555", tenantsVIP.String()+"/tcp", "--flags", "syn", "--segment", id.String())
		if e.Service == nil || e.Service.Name != service || e.Flow.Segment != id || e.Outcome != model.OutcomeForward {
			t.Errorf("a packet in %s is explained as %+v, of %+v", id, e.Reason, e.Service)
		}
	}
	opened := 0
	long := l.open(30)
	opened += len(long)
	before := l.remembered()
	for _, port := range portsOf(long) {
		if !before[port].IsValid() {
			t.Fatalf("blue's flow from port %d is not remembered: there are %v", port, before)
		}
	}
	stay := func(when string) {
		t.Helper()
		now := l.remembered()
		for i, port := range portsOf(long) {
			if now[port] != before[port] {
				l.lost = append(l.lost, fmt.Sprintf("%s from port %d, with %v", when, port, before[port]))
			}
			l.ask(long[i], uint64(i)+1)
		}
	}
	if limited {
		l.applyBeyond()
		stay("after red's sets")
	}

	// New flows: as many as red can make.
	const some = 100
	remembered := 0
	l.flood("synack", 6*time.Second, func() {
		l.director.waitFor("be full of red's flows", func() bool {
			c := l.counts(redTenant)
			return limited && c.FlowsRefused > 1000 || !limited && c.Flows > tenantsFlows*8/10
		})
		conns := l.open(some)
		opened += some
		now := l.remembered()
		for _, port := range portsOf(conns) {
			if now[port].IsValid() {
				remembered++
			}
		}
		stay("in a flood of red's flows")
	})
	red := l.counts(redTenant)
	t.Logf("red has %d of %d flows; of %d that blue has opened in the flood %d are remembered", red.Flows, tenantsFlows, some, remembered)
	switch {
	case limited && (red.Flows > 320+32 || remembered < some):
		t.Errorf("red has %d flows, and may have 320; of %d of blue's new ones %d are remembered", red.Flows, some, remembered)
	case !limited && remembered > some/2:
		t.Errorf("without a limit %d of %d of blue's new flows are remembered: the test shows nothing", remembered, some)
	}

	// Packets: more than red may have.
	const most = 3000
	if limited {
		l.limit(limits(fmt.Sprintf("packets-per-second: %d", most)), func(have *model.SegmentLimits) bool {
			return have != nil && have.PacketsPerSecond == most && have.Flows == 0
		})
	}
	was, begin := l.counts(redTenant), time.Now()
	sent := l.flood("syn", 3*time.Second, func() {
		opened += len(l.open(some))
		stay("in a flood of red's packets")
	})
	took := time.Since(begin).Seconds()
	red = l.counts(redTenant)
	passed := red.Packets - was.Packets
	t.Logf("of %d packets to red %d pass in %.1f s, and %d are over the limit", sent, passed, took, red.Limited)
	switch {
	case limited && (float64(passed) > most*(took+0.2) || red.Limited == 0):
		t.Errorf("of %d packets to red %d pass in %.1f s, and %d in a second may", sent, passed, took, most)
	case !limited && float64(passed) < 2*most*took:
		t.Errorf("without a limit only %d of %d packets to red pass: the test shows nothing", passed, sent)
	}
	if !limited {
		t.Logf("of blue %d flows are lost, and %d connections fail", len(l.lost), len(l.failed))
		return // how many is up to chance; that new flows find no place is not
	}
	if len(l.lost)+len(l.failed) > 0 {
		t.Errorf("flows of blue are lost, %v; connections of blue fail, %v", l.lost, l.failed)
	}
	blue := l.counts(blueTenant)
	if blue.Opened != uint64(opened) || blue.Dropped != 0 || blue.Limited != 0 || blue.FlowsRefused != 0 {
		t.Errorf("blue has opened %d connections, and there is counted %+v", opened, blue)
	}
}

// applyBeyond puts sets of red beyond each of its limits, and one of blue, which is taken.
func (l *limitedTenants) applyBeyond() {
	l.Helper()
	apply := func(owner string, services ...string) (string, error) {
		set := write(l.T, l.underlay.director, "set-of-"+owner+".yaml", "services:\n"+strings.Join(services, ""))
		return tryOn(l.T, l.underlay.director, weir, "apply", "-f", set, "--owner", owner, "--socket", l.director.socket)
	}
	more := "{address: 172.16.0.20}, {address: 172.16.0.21}, "
	for _, test := range []struct{ set, want string }{
		{l.service("red2", redTenant, 8, "") + l.service("red3", redTenant, 9, ""), "segment vxlan:5001 may have 3 services by segments[0].limits, and has 4 with this"},
		{strings.Replace(l.service("red2", redTenant, 8, ""), "backends: [", "backends: ["+more, 1), "segment vxlan:5001 may have 7 backends by segments[0].limits, and has 8 with this"},
		{l.service("red2", redTenant, 8, ", ring-size: 65521"), "segment vxlan:5001 may have 65536 ring-memory by segments[0].limits"},
	} {
		out, err := apply("red", test.set)
		if err == nil || !strings.Contains(out, test.want) {
			l.Errorf("a set of red is answered %q (%v), want %q", out, err, test.want)
		}
	}
	if out, err := apply("red", l.service("red2", redTenant, 8, "")); err != nil {
		l.Errorf("a set of red within its limits: %v: %s", err, out)
	}
	if out, err := apply("blue", l.service("blue2", blueTenant, 8, ", ring-size: 65521")+l.service("blue3", blueTenant, 9, "")); err != nil {
		l.Errorf("a set of blue while red is at its limits: %v: %s", err, out)
	}
}
