package datapath

import (
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// snatTimeouts are, in seconds, how long flows live without packets: the table of
// bpf/director/nat/snat.h, from its sources.
var snatTimeouts = map[abi.SnatState]uint64{
	abi.SnatStateSNAT_SYN:         60,   // nf_conntrack_tcp_timeout_syn_recv
	abi.SnatStateSNAT_ESTABLISHED: 7440, // RFC 5382, REQ-5
	abi.SnatStateSNAT_CLOSING:     240,  // RFC 5382, REQ-5
	abi.SnatStateSNAT_CLOSED:      60,   // Linux's TIME_WAIT
	abi.SnatStateSNAT_RESET:       60,
	abi.SnatStateSNAT_ANSWERED:    60,
	abi.SnatStateSNAT_ONE_WAY:     30, // nf_conntrack_udp_timeout
	abi.SnatStateSNAT_TRIED:       30,
	abi.SnatStateSNAT_TWO_WAY:     300, // RFC 4787, REQ-5
}

// lifetime is the timeout in units of struct snat_flow.
func lifetime(state abi.SnatState) uint32 { return uint32(snatTimeouts[state]*1e9>>30) + 1 }

// snatWorld is one full NAT service of each protocol, with two backends each.
func snatWorld(is4 bool) (w *testWorld, tcp, udp scenario) {
	w = &testWorld{}
	for _, s := range w.scenarios(func(way wayTo) bool { return way.snat }) {
		switch {
		case s.vip.Is4() != is4:
		case s.protocol == model.TCP:
			tcp = s
		case s.protocol == model.UDP:
			udp = s
		}
	}
	return w, tcp, udp
}

// The numbers of connections in these tests: of the client's SYN, and of the backend's.
const clientISN, backendISN = 1000, 5000

// numbered is a segment that is in sequence, with no data before it, or a datagram.
func (s scenario) numbered(from, to uint16, flags uint8, ofBackend bool) []packet.Header {
	if s.protocol.Datagrams() {
		return []packet.Header{l4(s.protocol, from, to), packet.Text("datagram")}
	}
	h := packet.TCPHeader{Src: from, Dst: to, Seq: clientISN, Ack: backendISN + 1, Flags: flags}
	if ofBackend {
		h.Seq, h.Ack = backendISN, clientISN+1
	} else if flags&packet.ACK == 0 {
		h.Ack = 0
	}
	if flags&packet.SYN == 0 {
		h.Seq++
	}
	return []packet.Header{h}
}

// establish makes an established connection.
func (s scenario) establish(t testing.TB, d *testDirector, port uint16) {
	t.Helper()
	if s.says(t, d, port, packet.SYN) != xdpTX {
		t.Fatalf("the flow of port %d does not fit", port)
	}
	s.hears(t, d, port, packet.SYN|packet.ACK)
	s.says(t, d, port, packet.ACK)
	if state := s.state(t, d, port); s.protocol == model.TCP && state != abi.SnatStateSNAT_ESTABLISHED {
		t.Fatalf("a connection that both sides have opened has state %d", state)
	}
}

// says sends a client's TCP packet, or datagram, from a port.
func (s scenario) says(t testing.TB, d *testDirector, port uint16, flags uint8) uint32 {
	t.Helper()
	action, _ := d.run(t, build(append([]packet.Header{ip(s.client, s.vip)}, s.numbered(port, servicePort, flags, false)...)...), 0)
	return action
}

// hears sends the packet with which the backend of a flow answers.
func (s scenario) hears(t testing.TB, d *testDirector, port uint16, flags uint8) uint32 {
	t.Helper()
	_, e := s.flowOf(t, d, port)
	b := s.backends[e.Backend-s.first]
	action, _ := d.run(t, build(append([]packet.Header{ip(b.address, e.source.address)}, s.numbered(b.port, e.source.port, flags, true)...)...), 0)
	return action
}

func (s scenario) segment4(from, to uint16, flags uint8) packet.Header {
	if s.protocol.Datagrams() {
		return l4(s.protocol, from, to)
	}
	return packet.TCPHeader{Src: from, Dst: to, Flags: flags}
}

func (s scenario) state(t testing.TB, d *testDirector, port uint16) abi.SnatState {
	t.Helper()
	_, e := s.flowOf(t, d, port)
	return abi.SnatState(e.State)
}

// age makes a flow look as if its last packet was that long ago.
func (s scenario) age(t testing.TB, d *testDirector, port uint16, units uint32) {
	t.Helper()
	at, e := s.flowOf(t, d, port)
	e.Seen = d.now() - units
	d.setFlow(t, at, e.SnatFlow)
}

// An index that stands for another backend than when the flow began.
func testSNATEpoch(t *testing.T) {
	w, tcp, udp := snatWorld(true)
	d := loadTestDirector(t, w)
	for _, s := range []scenario{tcp, udp} {
		s.says(t, d, clientPort, packet.SYN)
		_, old := s.flowOf(t, d, clientPort)
		entry := s.abiBackend(0)
		entry.Epoch++
		d.put(t, "backends", s.first, entry)
		b := s.backendEnd()
		rows := []row{s.pass("reply", ip(b.address, old.source.address), s.segment4(b.port, old.source.port, packet.ACK))}
		if s.protocol == model.TCP {
			rows = append(rows, row{name: "client", in: build(ip(s.client, s.vip), s.segment4(clientPort, servicePort, packet.ACK))}.
				dropped(abi.ReasonDROP_SNAT_UNKNOWN, s.testService))
		}
		d.check(t, rows)
		s.says(t, d, clientPort, packet.SYN)
		if _, e := s.flowOf(t, d, clientPort); e.Epoch != entry.Epoch {
			t.Errorf("the flow was not begun anew: epoch %d", e.Epoch)
		}
	}
}

// setBackend changes the state of a backend, as health and the operator do.
func (s scenario) setBackend(t testing.TB, d *testDirector, i int, state abi.BackendState) {
	t.Helper()
	s.backends[i].state = state
	d.put(t, "backends", s.first+uint32(i), s.abiBackend(i))
}

// A flow stays with its backend for as long as that is alive, whatever the ring
// says; without a ring too.
func testSNATStays(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		w, tcp, udp := snatWorld(is4)
		d := loadTestDirector(t, w)
		for _, s := range []scenario{tcp, udp} {
			on := func(step string, want uint32) {
				t.Helper()
				if action := s.says(t, d, clientPort, packet.ACK); action != xdpTX {
					t.Fatalf("%s: verdict %d", step, action)
				}
				if _, e := s.flowOf(t, d, clientPort); e.Backend != s.first+want {
					t.Errorf("%s: flow is with backend %d, want %d", step, e.Backend-s.first, want)
				}
			}
			s.says(t, d, clientPort, packet.SYN)
			s.ring.Slots = []model.Slot{{Owner: 1, Next: 0}}
			d.putRing(t, s.testService)
			on("another owner", 0)
			s.setBackend(t, d, 0, abi.BackendStateBACKEND_DRAINING)
			on("draining", 0)
			s.ring.Slots = nil
			d.putRing(t, s.testService)
			on("no ring", 0)
			s.ring.Slots = []model.Slot{{Owner: 1, Next: 0}}
			d.putRing(t, s.testService)
			s.says(t, d, clientPort+1, packet.SYN)
			if _, e := s.flowOf(t, d, clientPort+1); e.Backend != s.first+1 {
				t.Error("a new flow went to the backend that drains")
			}

			s.setBackend(t, d, 0, abi.BackendStateBACKEND_DOWN)
			if s.protocol.Datagrams() {
				on("down", 1)
			} else if action := s.says(t, d, clientPort, packet.ACK); action != xdpDrop {
				t.Errorf("packet to a backend that is down: verdict %d", action)
			}
			s.setBackend(t, d, 0, abi.BackendStateBACKEND_ACTIVE)
			if s.protocol == model.TCP {
				on("up again", 0)
			} else {
				on("up again", 1)
			}
		}
	}
}

// A connection that begins where another has ended is not one that a draining
// backend keeps.
func testSNATReusedPortLeavesDrainingBackend(t *testing.T) {
	w, s, _ := snatWorld(true)
	d := loadTestDirector(t, w)
	s.establish(t, d, clientPort)
	s.says(t, d, clientPort, packet.FIN|packet.ACK)
	s.hears(t, d, clientPort, packet.FIN|packet.ACK)
	s.setBackend(t, d, 0, abi.BackendStateBACKEND_DRAINING)
	s.ring.Slots = []model.Slot{{Owner: 1, Next: 0}}
	d.putRing(t, s.testService)
	s.says(t, d, clientPort, packet.ACK)
	if _, e := s.flowOf(t, d, clientPort); e.Backend != s.first {
		t.Error("the last packet of the old connection went to another backend")
	}
	s.says(t, d, clientPort, packet.SYN)
	if _, e := s.flowOf(t, d, clientPort); e.Backend != s.first+1 {
		t.Error("the new connection went to the backend that drains")
	}
}

// fullBucket makes 16 established flows in the only bucket there is, one address
// with 16 ports, and returns the row of the SYN of one more.
func fullBucket(t *testing.T) (d *testDirector, s scenario, more row) {
	w, s, _ := snatWorld(true)
	d = loadTestDirector(t, w)
	d.putSNAT(t, snatSources[:1], model.PortRange{First: 10000, Last: 10015})
	for i := range uint16(snatBucketSize) {
		s.establish(t, d, clientPort+i)
	}
	more = row{name: "one more", in: build(ip(s.client, s.vip), s.segment4(clientPort+snatBucketSize, servicePort, packet.SYN))}
	return d, s, more
}

// The flows that give way when every port is taken: those that were never established
// or that have ended, the oldest first, and none that was seen a moment ago.
func testSNATEviction(t *testing.T) {
	for _, test := range []struct {
		name  string
		state abi.SnatState
		age   uint32
		gives bool
	}{
		{"SYN of this moment", abi.SnatStateSNAT_SYN, 0, false},
		{"old SYN", abi.SnatStateSNAT_SYN, 3, true},
		{"ended this moment", abi.SnatStateSNAT_CLOSED, 0, false},
		{"ended", abi.SnatStateSNAT_CLOSED, 3, true},
		{"reset", abi.SnatStateSNAT_RESET, 3, true},
		{"half closed", abi.SnatStateSNAT_CLOSING, 100, false},
		{"established, idle", abi.SnatStateSNAT_ESTABLISHED, 6000, false},
		{"established, expired", abi.SnatStateSNAT_ESTABLISHED, 8000, true},
		{"answered this moment", abi.SnatStateSNAT_ANSWERED, 0, false},
		{"answered, and not acknowledged", abi.SnatStateSNAT_ANSWERED, 3, true},
		{"one way", abi.SnatStateSNAT_ONE_WAY, 3, true},
		{"both ways, for a moment", abi.SnatStateSNAT_TRIED, 3, true},
		{"two way", abi.SnatStateSNAT_TWO_WAY, 100, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, s, more := fullBucket(t)
			const younger, older = clientPort + 3, clientPort + 7
			for port, age := range map[uint16]uint32{younger: test.age, older: test.age} {
				at, e := s.flowOf(t, d, port)
				if port == older && test.age > 0 && test.age < 4000 {
					age += 5
				}
				e.State, e.Seen = uint8(test.state), d.now()-age
				d.setFlow(t, at, e.SnatFlow)
			}
			_, gone := s.flowOf(t, d, older)
			if !test.gives {
				d.check(t, []row{more.dropped(abi.ReasonDROP_SNAT_FULL, s.testService)})
				return
			}
			if s.says(t, d, clientPort+snatBucketSize, packet.SYN) != xdpTX {
				t.Fatal("nothing gave way")
			}
			_, e := s.flowOf(t, d, clientPort+snatBucketSize)
			if test.age < 4000 && e.source != gone.source {
				t.Errorf("it took %v, not the oldest: %v", e.source, gone.source)
			}
			if n := len(d.flows(t)); n != snatBucketSize {
				t.Errorf("%d flows in %d ports", n, snatBucketSize)
			}
		})
	}
}

// A flood of SYNs from everywhere takes what is free and pushes out nobody.
func testSNATFlood(t *testing.T) {
	w, s, _ := snatWorld(true)
	d := loadTestDirector(t, w)
	const established = 40
	for i := range uint16(established) {
		s.establish(t, d, clientPort+i)
	}
	before := d.flows(t)
	for i := range 2000 {
		attacker := netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
		d.run(t, build(ip(attacker, s.vip), s.segment4(uint16(i), servicePort, packet.SYN)), 0)
		if i%500 == 0 { // time goes by
			for at, e := range d.flows(t) {
				e.Seen -= 3
				d.setFlow(t, at, e.SnatFlow)
			}
		}
	}
	after := d.flows(t)
	for at, e := range before {
		if now, found := after[at]; !found || now.Client != e.Client || now.ClientPort != e.ClientPort {
			t.Errorf("the flow at %v is gone", e.source)
		}
	}
}

// Flows that begin on all CPUs at once: each has one place, also where both CPUs
// see its first packet, and every reply finds its client.
func testSNATConcurrent(t *testing.T) {
	w, _, s := snatWorld(true)
	d := loadTestDirector(t, w)
	ports := model.PortRange{First: 20000, Last: 20000 + 4095}
	d.putSNAT(t, snatSources[:1], ports)
	const flows = 1500
	var all sync.WaitGroup
	for cpu := range min(runtime.NumCPU(), 4) {
		all.Go(func() {
			runtime.LockOSThread() // and never unlocked: the thread keeps its one CPU
			var one unix.CPUSet
			one.Set(cpu)
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				t.Error(err)
			}
			for i := range uint16(flows) {
				if action := s.says(t, d, 1024+i, 0); action != xdpTX {
					t.Errorf("flow %d: verdict %d", i, action)
				}
			}
		})
	}
	all.Wait()
	owners := map[uint16][]uint16{} // client's port -> ports that it has
	for at, e := range d.flowsOf(t, snatSources[:1], ports) {
		owners[be16(e.ClientPort)] = append(owners[be16(e.ClientPort)], uint16(at))
		b := s.backendEnd()
		_, out := d.run(t, build(ip(b.address, e.source.address), packet.UDPHeader{Src: b.port, Dst: e.source.port}, packet.Text("x")), 0)
		packet.Check(t, out, packet.Ether(ownMAC, clientMAC), packet.IP(s.vip, s.client), packet.UDP(servicePort, be16(e.ClientPort)), packet.Anything())
	}
	if len(owners) != flows {
		t.Errorf("%d of %d flows have a place", len(owners), flows)
	}
	twice := 0
	for _, places := range owners {
		if len(places) > 1 {
			twice++
		}
	}
	// Rare even where both CPUs do it on purpose, and harmless: see bpf/director/nat/snat.h.
	if twice > flows/20 {
		t.Errorf("%d of %d flows have two places", twice, flows)
	}
	t.Logf("%d flows, %d with two places", flows, twice)
}

// flowsOf is flows for a table of other sources and ports.
func (d *testDirector) flowsOf(t testing.TB, sources []netip.Addr, ports model.PortRange) map[int]flowEntry {
	t.Helper()
	defer func(s []netip.Addr, p model.PortRange) { snatSources, snatPorts = s, p }(snatSources, snatPorts)
	snatSources, snatPorts = sources, ports
	return d.flows(t)
}

// Every flow gets its own source as long as there are some: two choices of 16
// places fill most of a table before they turn anybody away.
func testSNATFill(t *testing.T) {
	w, s, _ := snatWorld(true)
	d := loadTestDirector(t, w)
	ports := model.PortRange{First: 20000, Last: 20000 + 4095}
	d.putSNAT(t, snatSources[:2], ports)
	const total = 2 * 4096
	refused := 0
	for i := range total * 8 / 10 {
		client := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		frame := build(ip(client, s.vip), s.segment4(uint16(1024+i), servicePort, packet.SYN))
		if action, _ := d.run(t, frame, 0); action != xdpTX {
			refused++
		}
	}
	if refused > 0 {
		t.Errorf("%d flows were refused before the table was 80 %% full", refused)
	}
	used := map[netip.Addr]int{}
	for _, e := range d.flowsOf(t, snatSources[:2], ports) {
		used[e.source.address]++
	}
	for _, a := range snatSources[:2] {
		if used[a] < total*8/10/2*9/10 {
			t.Errorf("%v has %d of %d flows", a, used[a], total*8/10)
		}
	}
}

// allSNAT are the tests of full NAT's table, in the order of the file.
var allSNAT = []struct {
	name string
	run  func(*testing.T)
}{
	{"states", testSNATStates},
	{"epoch", testSNATEpoch},
	{"stays", testSNATStays},
	{"reused port leaves draining backend", testSNATReusedPortLeavesDrainingBackend},
	{"eviction", testSNATEviction},
	{"share", testSNATShare},
	{"shares of two services", testSNATShares},
	{"flood", testSNATFlood},
	{"concurrent", testSNATConcurrent},
	{"fill", testSNATFill},
	{"own place", testSNATOwnPlace},
	{"every place", testSNATEveryPlace},
	{"random", testSNATRandom},
}

func testSNATTable(t *testing.T) {
	for _, test := range allSNAT {
		t.Run(test.name, test.run)
	}
}
