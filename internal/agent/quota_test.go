package agent

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/crowd"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// sharesOf reads a service's quota of a table, and that of all: what the agent has counted and
// what programs have added.
func (h *redirectHost) sharesOf(service string) (all, own redirectHostQuota) {
	h.t.Helper()
	for _, s := range h.list {
		if s.name != service {
			continue
		}
		if err := h.RedirectQuotas.Lookup(h.indexes[s.vip], &own); err != nil {
			h.t.Fatal(err)
		}
	}
	if err := h.RedirectQuotas.Lookup(uint32(0), &all); err != nil {
		h.t.Fatal(err)
	}
	return all, own
}

// occupy fills places of the host's connections with those of a service.
func (h *redirectHost) occupy(service string, connections int) {
	h.t.Helper()
	flows, ways := make([]redirectHostFlow, connections), make([]redirectRedirectWay, connections)
	for _, s := range h.list {
		if s.name != service {
			continue
		}
		for i := range flows {
			client := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 0x64400000+uint32(i))))
			flows[i] = redirectHostFlow{Client: redirectAddressOf(client), Vip: redirectAddressOf(s.vip.Addr()), VipPort: networkOrder(s.vip.Port())}
			ways[i] = redirectRedirectWay{Service: h.indexes[s.vip], Seen: uint64(now())}
		}
	}
	if _, err := h.RedirectLeaving.BatchUpdate(flows, ways, nil); err != nil {
		h.t.Fatal(err)
	}
	if err := h.count(); err != nil {
		h.t.Fatal(err)
	}
}

// TestRedirectQuotas: a service with four fifths of the host's connections gets no more of them: its
// SYNs do not ask, so nothing waits for an answer that nobody would keep. Another one finds room.
func TestRedirectQuotas(t *testing.T) {
	h := newRedirectHost(t)
	four, six := connections()[0], connections()[1]
	room := int(h.RedirectLeaving.MaxEntries())
	h.occupy("four", room*4/5)
	under := four
	under.client = netip.AddrPortFrom(client4, 41000)
	h.check(under.asks(), under.taken())
	h.check(leavesAs("SYN without room", "four quota", segment(four.client, four.vip, synOf(linuxSYN...)), nil),
		leavesAs("the same again", "", segment(four.client, four.vip, synOf(linuxSYN...)), nil),
		six.asks(), six.taken(), under.sends(packet.ACK, 3), under.receives(packet.ACK, 3))

	h = newRedirectHost(t)
	h.check(four.asks())
	h.occupy("four", room*4/5+1)
	h.check(arrivesAs("SYN-ACK without room", "four full", four.answers(), nil))
	if _, own := h.sharesOf("four"); own.Added != 0 {
		t.Errorf("a connection without a place has taken %d of the quota", own.Added)
	}
}

// TestRedirectQuotasAreGivenBack: connections that take the place of others by the same port count
// once, and what has no place takes none of the quota.
func TestRedirectQuotasAreGivenBack(t *testing.T) {
	h := newRedirectHost(t)
	c := connections()[0]
	for seq := uint32(firstNumber); seq > firstNumber-3; seq-- {
		syn, answer := synOf(linuxSYN...), synAckOf(withOption(c.vip, linuxSYN)...)
		syn.Seq, answer.Ack = seq, seq+1
		run(t, h.RedirectLeave, build(frame{ether}, segment(c.client, c.vip, syn)), nil)
		run(t, h.RedirectArrive, build(frame{ether}, segment(c.backend, c.client, answer)), nil)
		if all, own := h.sharesOf("four"); all.Added != 1 || own.Added != 1 {
			t.Errorf("one connection is there, and %d and %d are counted", all.Added, own.Added)
		}
	}
	h.check(c.receives(packet.RST, 0))
	direct := synOf(linuxSYN...)
	direct.Seq = 4711
	h.check(leavesAs("a call of the backend itself, after the end", "", segment(c.client, c.backend, direct), nil))
	if all, own := h.sharesOf("four"); all.Added != 0 || own.Added != 0 {
		t.Errorf("no connection is there, and %d and %d are counted", int32(all.Added), int32(own.Added))
	}

	spec, err := loadRedirect()
	if err != nil {
		t.Fatal(err)
	}
	spec.Maps["redirect_leaving"].MaxEntries = 1
	full := &redirectHost{loadTestRedirector(t, spec), t}
	t.Cleanup(func() { _ = full.Close() })
	six := connections()[1]
	full.check(c.asks(), c.taken(), six.asks(), arrivesAs("SYN-ACK", "six full", six.answers(), nil))
	if all, own := full.sharesOf("six"); all.Added != 1 || own.Added != 0 {
		t.Errorf("of one connection %d are counted, and %d of the one that found no place", all.Added, own.Added)
	}
}

// TestUDPQuotas: a flow of UDP that goes on stays if its service has room, and else goes on as one
// that has just begun, until there is room. Flows that found no room are counted by service.
func TestUDPQuotas(t *testing.T) {
	h := newTestHost(t)
	o, four, six := outers()[0], talk{vip: vip4, client: client4, port: 1000}, talk{vip: vip6, client: client6, port: 1000}
	index := func(name string) uint32 {
		for _, s := range h.plan.services {
			if s.name == name {
				return h.indexes[s.identity()]
			}
		}
		t.Fatalf("there is no service %s", name)
		return 0
	}
	set := func(all, own uint32) {
		t.Helper()
		if err := contents.Put(h.UdpQuotas, map[uint32]bpfHostQuota{0: {Counted: all}, index("talk4"): {Counted: own}, index("talk6"): {}}); err != nil {
			t.Fatal(err)
		}
	}
	noPlace := func(name string) uint64 {
		t.Helper()
		c, err := readCounter(h.ServiceNoPlace, index(name))
		if err != nil {
			t.Fatal(err)
		}
		return c.Packets
	}
	send := func(f talk) {
		t.Helper()
		if verdict, _ := run(t, h.HostXdp, o.wrap(o.from, o.to, nil, f.datagram()), nil); verdict != xdpPass {
			t.Fatalf("the verdict about a datagram of %v is %d, want %d", f, verdict, xdpPass)
		}
	}
	const free = 4
	set(testFlows-free, 4*free)
	send(four) // it begins before the other one, so it has lasted for as long then
	waitFor(t, "a flow of a service with room to be sustained", func() bool {
		send(six)
		send(four)
		return h.sustained(six) > 0
	})
	if h.sustained(four) > 0 || h.remembered(four) == 0 || noPlace("talk4") == 0 || noPlace("talk6") != 0 {
		t.Errorf("without room a flow is sustained: %v, remembered: %v, counted %d times, and %d times of the service with room",
			h.sustained(four) > 0, h.remembered(four) > 0, noPlace("talk4"), noPlace("talk6"))
	}
	set(testFlows-free, 4*free-1)
	send(four)
	if h.sustained(four) == 0 {
		t.Error("there is room for one more, and the flow does not get it")
	}

	a := &Agent{kernel: &kernel{objects: h.bpfObjects, memory: &memory{flows: udpMemory{sharedMap{Map: h.UdpFlows}, sharedMap{Map: h.UdpFresh}}}},
		plan: h.plan, tables: tables{indexes: h.indexes}}
	old := talk{vip: vip4, client: client4, port: 1001}.key()
	if err := h.UdpFlows.Put(old, uint64(now())-flowTimeout); err != nil {
		t.Fatal(err)
	}
	if err := a.countDatagrams(); err != nil {
		t.Fatal(err)
	}
	for service, want := range map[uint32]uint32{0: 2, index("talk4"): 1, index("talk6"): 1} {
		var quota bpfHostQuota
		if err := h.UdpQuotas.Lookup(service, &quota); err != nil {
			t.Fatal(err)
		}
		if quota != (bpfHostQuota{Counted: want}) {
			t.Errorf("of service %d %+v is counted, want %d", service, quota, want)
		}
	}
}

// TestPodQuotasAreGivenBack: a connection for which the table has no place takes nothing of its
// service's quota, and one by the same port as one that has ended takes that one's.
func TestPodQuotasAreGivenBack(t *testing.T) {
	p := newPodLab(t, true, true)
	added := func() (all, own uint32) {
		t.Helper()
		var quotas [2]bpfHostQuota
		for i, index := range []uint32{0, p.indexes[identity{podVIP4, model.TCP, model.PortRange{First: 80, Last: 80}}]} {
			if err := p.PodQuotas.Lookup(index, &quotas[i]); err != nil {
				t.Fatal(err)
			}
		}
		return quotas[0].Added, quotas[1].Added
	}
	c := p.talk(4300)
	c.opens(t, p.first)
	if all, own := added(); all != 1 || own != 1 {
		t.Errorf("one connection is there, and %d and %d are counted", all, own)
	}
	c.speak(t, says(packet.RST, 101, 0))
	c.opens(t, p.first)
	if all, own := added(); all != 1 || own != 1 {
		t.Errorf("another connection by the same port has taken its place, and %d and %d are counted", all, own)
	}

	room := p.PodFlows.MaxEntries() - 2
	flows, ways := make([]bpfPodFlow, room), make([]bpfPodWay, room)
	for i := range flows {
		binary.NativeEndian.PutUint32(flows[i].Client.Bytes[:], uint32(i))
		ways[i].Kind = uint8(bpfPodWayKindPOD_LEAVING)
	}
	if _, err := p.PodFlows.BatchUpdate(flows, ways, nil); err != nil {
		t.Fatal(err)
	}
	before := p.established(t)
	p.talk(4301).opens(t, p.first)
	if n := p.established(t); n != before {
		t.Fatalf("%d connections stay in a table that is full, want %d", n, before)
	}
	if all, own := added(); all != 1 || own != 1 {
		t.Errorf("a connection has found no place, and %d and %d of one are counted", all, own)
	}
}

// TestCrowds: the services whose flows find no place are named, those with the most first, and not
// any more when a while has gone by in which all have found one.
func TestCrowds(t *testing.T) {
	of := func(service, table string) serviceInTable { return serviceInTable{service, table} }
	var c crowd.Watch[serviceInTable]
	at := time.Now()
	names := func(at time.Time) (names []string) {
		for _, s := range crowdedIn(&c, at) {
			names = append(names, s.Table+": "+s.Service)
		}
		return names
	}
	check := func(what string, at time.Time, want ...string) {
		t.Helper()
		got := names(at)
		same := len(got) == len(want)
		for i := range got {
			same = same && got[i] == want[i]
		}
		if !same {
			t.Errorf("%s: %q are named, want %q", what, got, want)
		}
	}
	c.Take(map[serviceInTable]uint64{of("web", model.RedirectTable): 1000}, at)
	check("counted before the agent looked", at)
	next := map[serviceInTable]uint64{of("web", model.RedirectTable): 1000 + crowd.From, of("few", model.RedirectTable): crowd.From - 1,
		of("dns", model.UDPFlowsTable): 50, of("a", model.PodsTable): 20, of("b", model.PodsTable): 40, of("c", model.PodsTable): 30, of("d", model.PodsTable): 10}
	c.Take(next, at)
	want := []string{model.UDPFlowsTable + ": dns", model.PodsTable + ": b", model.PodsTable + ": c", model.PodsTable + ": a", model.RedirectTable + ": web"}
	check("many", at, want...)
	c.Take(next, at.Add(crowd.Lasts))
	check("a while later", at.Add(crowd.Lasts), want...)
	check("later than that", at.Add(crowd.Lasts+time.Second))
}
