package datapath

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

func testPolicies(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"turns", testTurns},
		{"turns of who is down", testTurnsOfDown},
		{"turns on all CPUs", testTurnsOnAllCPUs},
		{"random", testRandom},
		{"least", testLeast},
		{"least of many", testLeastOfMany},
		{"two of all", testTwoOfAll},
		{"draws by weight", testDrawsByWeight},
		{"two, redirected", testTwoRedirected},
		{"no place", testPolicyWithoutPlace},
		{"redirected", testPolicyRedirected},
		{"loads are those of the receivers", testLoadsOfReceivers},
	} {
		t.Run(test.name, test.run)
	}
}

// amongAll is a service of one slot, which its first backend owns, and that asks memory,
// with a policy that may choose any backend.
func amongAll(policy model.Policy, is4 bool, n int, turns ...uint32) (*testWorld, scenario) {
	w := &testWorld{}
	backends := make([]testBackend, n)
	for i := range backends {
		backends[i] = testBackend{mode: model.L2DSR, address: backendAddress(is4, i), weight: 100}
	}
	ring := model.Ring{Slots: []model.Slot{{Owner: 0, Next: 1}}, Turns: turns}
	s := w.add(testService{vip: vipAddress(is4, 1), protocol: model.TCP, port: singlePort(servicePort), salt: 7, memory: true, settling: true,
		policy: policy, backends: backends, ring: ring})
	return w, scenario{testService: s, name: fmt.Sprint(policy), client: clientOf(is4)}
}

// firstTurn is the place in the order of the first turn.
func firstTurnOf(d *testDirector, turns int) int {
	return int(d.world.abiSettings().FlowSalt % uint64(turns))
}

// New connections go exactly to the next backend; everything else follows its connection.
func testTurns(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		order := []uint32{0, 2, 1, 2, 0, 2, 1, 2, 0, 1, 2, 2, 0, 1, 2, 0, 1, 2, 1} // more than a line
		w, s := amongAll(model.RoundRobin, is4, 3, order...)
		d := loadTestDirector(t, w)
		onCPU(t, 0, func() {
			at, places := firstTurnOf(d, len(order)), map[uint16]int{}
			for i := range uint16(50) {
				port, want := clientPort+i, int(order[(at+int(i))%len(order)])
				s.want(t, d, port, synFlag, want, fmt.Sprintf("turn %d", i))
				places[port] = want
				s.want(t, d, port, synFlag, want, "a SYN again takes no turn")
				s.want(t, d, port, ackFlag, want, "the connection goes on")
			}
			for port, place := range places {
				s.want(t, d, port, ackFlag, place, "and on")
			}
			s.want(t, d, clientPort+900, ackFlag, 0, "nobody has seen it begin: the ring says whose it is")
		})
	}
}

// A backend that is down or drains is passed over; if all are, the slot's row has the connection.
func testTurnsOfDown(t *testing.T) {
	const down = abi.BackendStateBACKEND_DOWN
	order := []uint32{0, 1, 2}
	w, s := amongAll(model.RoundRobin, true, 3, order...)
	d := loadTestDirector(t, w)
	onCPU(t, 0, func() {
		s.setBackend(t, d, 1, down)
		got := map[int]int{}
		for i := range uint16(30) {
			got[s.goes(t, d, clientPort+i, synFlag)]++
		}
		if got[0] != 15 || got[2] != 15 {
			t.Errorf("30 connections while backend 1 is down: %v, want 15 for 0 and 2 each: its turns are left out", got)
		}
		s.setBackend(t, d, 2, abi.BackendStateBACKEND_DRAINING)
		for i := range uint16(5) {
			s.want(t, d, clientPort+100+i, synFlag, 0, "it is the only one that gets new connections")
		}
		stays := uint16(0)
		for port, flow := range s.remembered(t, d) {
			if flow.Backend == s.first+2 {
				stays = port
			}
		}
		s.want(t, d, stays, ackFlag, 2, "a draining backend keeps its connections")
		s.setBackend(t, d, 2, down)
		s.want(t, d, stays, synFlag, 0, "its backend is down: a SYN takes a turn")
		s.setBackend(t, d, 0, down)
		s.want(t, d, clientPort+200, synFlag, -1, "all are down")
		s.setBackend(t, d, 1, abi.BackendStateBACKEND_DRAINING)
		s.want(t, d, clientPort+201, synFlag, 1, "nobody whose turn it is: the row's first that is alive")
	})
}

// However CPUs meet, no turn is left out or taken twice.
func testTurnsOnAllCPUs(t *testing.T) {
	const each = 300
	order := []uint32{0, 1, 2, 1}
	w, s := amongAll(model.RoundRobin, true, 3, order...)
	s.testService.memory, s.testService.settling = false, false // which might have no place
	d := loadTestDirector(t, w)
	cpus := min(d.cpus, 4)
	got := make([][3]int, cpus)
	var group sync.WaitGroup
	for cpu := range cpus {
		frames := make([][]byte, each)
		for i := range frames {
			frames[i] = build(ip(s.client, s.vip), s.segment4(clientPort+uint16(cpu*each+i), servicePort, synFlag))
		}
		group.Add(1)
		go func() {
			defer group.Done()
			onCPU(t, cpu, func() {
				for _, frame := range frames {
					action, out, err := d.program.Test(frame)
					if err != nil || action != xdpTX {
						t.Errorf("verdict %d: %v", action, err)
						return
					}
					got[cpu][s.receiver(t, action, out)]++
				}
			})
		}()
	}
	group.Wait()
	var sum [3]int
	for _, of := range got {
		for i, n := range of {
			sum[i] += n
		}
	}
	if total := cpus * each; sum != [3]int{total / 4, total / 2, total / 4} {
		t.Errorf("%d connections of %d CPUs in turn: %v, want %d, %d and %d", total, cpus, sum, total/4, total/2, total/4)
	}
}

// opens sends SYNs that are all the first of their flow, and counts whose they became.
func (s scenario) opens(t *testing.T, d *testDirector, connections int) (got [3]int) {
	t.Helper()
	frame := build(ip(s.client, s.vip), s.segment4(clientPort, servicePort, synFlag))
	for range connections {
		d.forgetFlows(t)
		action, out, err := d.program.Test(frame)
		if err != nil {
			t.Fatal(err)
		}
		got[s.receiver(t, action, out)]++
	}
	return got
}

// A slot is drawn for each connection, so shares are those of slots; one whose owner is
// down is its next candidate's.
func testRandom(t *testing.T) {
	const connections = 4000
	w, s := amongAll(model.Random, true, 3, 0, 1, 2)
	s.testService.ring.Slots = []model.Slot{{Owner: 0, Next: 1}, {Owner: 1, Next: 0}, {Owner: 2, Next: 0}, {Owner: 2, Next: 1}}
	d := loadTestDirector(t, w)
	onCPU(t, 0, func() {
		share := func(what string, want [3]int) {
			got := s.opens(t, d, connections)
			for i := range got {
				// The standard deviation is at most 32: this is nine of them.
				if off := got[i] - want[i]; off < -288 || off > 288 || want[i] == 0 && got[i] > 0 {
					t.Errorf("%s: %d connections are %v, want about %v", what, connections, got, want)
					break
				}
			}
		}
		share("all are up", [3]int{1000, 1000, 2000})
		s.setBackend(t, d, 2, abi.BackendStateBACKEND_DOWN)
		share("one is down", [3]int{2000, 2000, 0})
	})
}

// The least load for its weight, also with one connection more.
func testLeast(t *testing.T) {
	const one = uint32(abi.LoadScaleLOAD_CONNECTION)
	for _, c := range []struct {
		name    string
		loads   [4]uint32 // in connections
		weights [4]uint32
		down    int // -1: none
		want    []int
	}{
		{"the least", [4]uint32{5, 3, 4, 9}, [4]uint32{1, 1, 1, 1}, -1, []int{1}},
		{"equals", [4]uint32{5, 3, 9, 3}, [4]uint32{1, 1, 1, 1}, -1, []int{1, 3}},
		{"nothing is known", [4]uint32{}, [4]uint32{100, 100, 100, 100}, -1, []int{0, 1, 2, 3}},
		{"by weight", [4]uint32{8, 3, 9, 9}, [4]uint32{3, 1, 1, 1}, -1, []int{0}},
		{"with one connection more", [4]uint32{0, 0, 9, 9}, [4]uint32{1, 2, 1, 1}, -1, []int{1}},
		{"the least is down", [4]uint32{5, 3, 4, 9}, [4]uint32{1, 1, 1, 1}, 1, []int{2}},
		{"the least has no weight", [4]uint32{5, 3, 4, 9}, [4]uint32{1, 0, 1, 1}, -1, []int{2}},
		{"nobody has a weight", [4]uint32{5, 3, 4, 9}, [4]uint32{}, -1, []int{0}}, // the slot's
		{"the largest loads", [4]uint32{1 << 26, 1<<26 - 9, 1 << 26, 1 << 26}, [4]uint32{65535, 65535, 65535, 1}, -1, []int{1}},
	} {
		w, s := amongAll(model.LeastConn, true, 4, 0, 1, 2, 3)
		for i := range s.backends {
			s.backends[i].opened, s.backends[i].weight = c.loads[i]*one, c.weights[i]
		}
		d := loadTestDirector(t, w)
		onCPU(t, 0, func() {
			if c.down >= 0 {
				s.setBackend(t, d, c.down, abi.BackendStateBACKEND_DOWN)
			}
			d.putLoads(t, s.testService)
			got := s.goes(t, d, clientPort, synFlag)
			if !slices.Contains(c.want, got) {
				t.Errorf("%s: loads %v by weights %v: it went to %d, want %v", c.name, c.loads, c.weights, got, c.want)
			}
			for i := range s.backends {
				want := c.loads[i] * one
				if i == got && want < uint32(abi.LoadScaleLOAD_MOST) {
					want += one
				}
				if load := d.load(t, s.first+uint32(i)).Opened; load != want {
					t.Errorf("%s: backend %d has a load of %d, want %d", c.name, i, load, want)
				}
			}
			s.want(t, d, clientPort, ackFlag, got, "the connection goes on")
		})
	}
}

// Of more than are compared, it is the least of some, wherever these begin.
func testLeastOfMany(t *testing.T) {
	const backends, compared = 200, 64
	var turns []uint32
	for i := range uint32(backends) {
		turns = append(turns, i)
	}
	w, s := amongAll(model.LeastConn, true, backends, turns...)
	free := func(i int) bool { return i%(compared-1) == 0 } // each comparison meets one
	for i := range s.backends {
		if s.backends[i].opened = 1 << 20; free(i) {
			s.backends[i].opened = 0
		}
	}
	d := loadTestDirector(t, w)
	onCPU(t, 0, func() {
		for i := range uint16(100) {
			if got := s.goes(t, d, clientPort+i, synFlag); !free(got) {
				t.Errorf("connection %d went to backend %d, which has many", i, got)
			}
		}
	})
}

// Of two that are drawn the one with less load for its weight, also with one connection more:
// of two in all that is the better, and of three never the worst.
func testTwoOfAll(t *testing.T) {
	const one, down = uint32(abi.LoadScaleLOAD_CONNECTION), abi.BackendStateBACKEND_DOWN
	for _, c := range []struct {
		name    string
		turns   []uint32
		loads   [3]uint32 // in connections
		weights [3]uint32
		down    int // -1: none
		want    []int
	}{
		{"the less", []uint32{0, 1}, [3]uint32{5, 4}, [3]uint32{1, 1}, -1, []int{1}},
		{"the less, the other way", []uint32{0, 1}, [3]uint32{4, 5}, [3]uint32{1, 1}, -1, []int{0}},
		{"equals", []uint32{0, 1}, [3]uint32{4, 4}, [3]uint32{1, 1}, -1, []int{0, 1}},
		{"by weight", []uint32{0, 1, 0}, [3]uint32{8, 4}, [3]uint32{2, 1}, -1, []int{0}}, // 9/2 and 5
		{"with one connection more", []uint32{0, 1}, [3]uint32{0, 0}, [3]uint32{1, 2}, -1, []int{1}},
		{"no eighth for the owner", []uint32{0, 1}, [3]uint32{90, 89}, [3]uint32{1, 1}, -1, []int{1}},
		{"never the worst of three", []uint32{0, 1, 2}, [3]uint32{9, 8, 7}, [3]uint32{1, 1, 1}, -1, []int{1, 2}},
		{"one is down", []uint32{0, 1, 2}, [3]uint32{9, 8, 7}, [3]uint32{1, 1, 1}, 2, []int{1}},
		{"one has no turn", []uint32{0, 2}, [3]uint32{9, 0, 8}, [3]uint32{1, 1, 1}, -1, []int{2}},
		{"one alone", []uint32{2}, [3]uint32{0, 0, 99}, [3]uint32{1, 1, 1}, -1, []int{2}},
		{"one alone is up", []uint32{1, 2}, [3]uint32{0, 0, 99}, [3]uint32{1, 1, 1}, 1, []int{2}},
		{"the largest loads", []uint32{0, 1}, [3]uint32{1 << 26, 1<<26 - 9}, [3]uint32{65535, 65535}, -1, []int{1}},
	} {
		for _, is4 := range []bool{true, false} {
			w, s := amongAll(model.P2C, is4, 3, c.turns...)
			for i := range s.backends {
				s.backends[i].opened, s.backends[i].weight = c.loads[i]*one, c.weights[i]
			}
			d := loadTestDirector(t, w)
			onCPU(t, 0, func() {
				if c.down >= 0 {
					s.setBackend(t, d, c.down, down)
				}
				for i := range uint16(20) {
					d.putLoads(t, s.testService)
					got := s.goes(t, d, clientPort+i, synFlag)
					if !slices.Contains(c.want, got) {
						t.Errorf("%s: loads %v by weights %v: it went to %d, want %v", c.name, c.loads, c.weights, got, c.want)
					}
					if want := min(s.backends[got].opened+one, uint32(abi.LoadScaleLOAD_MOST)); d.load(t, s.first+uint32(got)).Opened != want && c.loads[got] < 1<<26-9 {
						t.Errorf("%s: the load of who got it is %d, want %d", c.name, d.load(t, s.first+uint32(got)).Opened, want)
					}
					s.want(t, d, clientPort+i, ackFlag, got, "the connection goes on")
				}
			})
		}
	}
}

// Backends are drawn by turns, and so by weight: without loads, the first that is drawn gets
// the connection.
func testDrawsByWeight(t *testing.T) {
	const connections = 4000
	w, s := amongAll(model.P2C, true, 3, 0, 2, 1, 2)
	for i := range s.backends {
		s.backends[i].weight = 0
	}
	d := loadTestDirector(t, w)
	onCPU(t, 0, func() {
		got := s.opens(t, d, connections)
		for i, want := range [3]int{1000, 1000, 2000} {
			// The standard deviation is at most 32: this is nine of them.
			if off := got[i] - want; off < -288 || off > 288 {
				t.Errorf("%d connections are %v, want about 1000, 1000 and 2000", connections, got)
			}
		}
	})
}

// A redirected connection goes to the better of two of all backends. One that falls back to gue
// goes to one of the slot's two, which its packets name.
func testTwoRedirected(t *testing.T) {
	const one = uint32(abi.LoadScaleLOAD_CONNECTION)
	for _, is4 := range []bool{true, false} {
		w, s := amongAll(model.P2C, is4, 4, 2, 3)
		s.testService.memory, s.testService.settling, s.testService.redirected = false, false, true
		for i := range s.backends {
			s.backends[i].mode, s.backends[i].redirect = model.GUE, i != 1
			s.backends[i].weight, s.backends[i].opened = 1, [4]uint32{100, 50, 10, 5}[i]*one
		}
		d := loadTestDirector(t, w)
		goes := func(h packet.TCPHeader) int {
			d.putLoads(t, s.testService)
			action, out := d.run(t, build(ip(s.client, s.vip), h), 0)
			return s.receiver(t, action, out)
		}
		plain := syn(nil)
		plain.Options = linuxSYN
		for range 12 {
			if got := goes(plain); got != 1 {
				t.Errorf("a SYN that does not ask went to backend %d, want the slot's backup, which has half the owner's load", got)
			}
			if got := goes(syn(asking(linuxSYN...))); got != 3 {
				t.Errorf("a SYN that asks went to backend %d, want the one of two that has less", got)
			}
		}
		s.want(t, d, clientPort, ackFlag, 0, "what is open goes to the owner first")
	}
}

// Where no place is left to remember a connection, it goes where the ring says, and so do
// its packets.
func testPolicyWithoutPlace(t *testing.T) {
	w, s := amongAll(model.RoundRobin, true, 3, 1, 2)
	d := loadTestDirector(t, w)
	onCPU(t, 0, func() {
		refused := d.flowCount(t, abi.FlowEventFLOW_REFUSED)
		byRing, byTurn, places := 0, 0, len(d.flowPlaces(t))
		for i := range uint16(4 * places) {
			got := s.goes(t, d, 1+i, synFlag)
			switch got {
			case 0: // the owner, which has no turn
				byRing++
			default:
				byTurn++
			}
			s.want(t, d, 1+i, ackFlag, got, "the connection goes on")
		}
		refused = d.flowCount(t, abi.FlowEventFLOW_REFUSED) - refused
		if byRing == 0 || byTurn > places || refused != 2*uint64(byRing) {
			t.Errorf("%d connections were placed by the ring and %d in turn, with %d places; %d packets were refused one, want all of the former's",
				byRing, byTurn, places, refused)
		}
	})
}

// Without memory the policy places only redirected connections, on backends that can
// take them, and everything else goes by the ring.
func testPolicyRedirected(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		w, s := amongAll(model.RoundRobin, is4, 3, 0, 1, 2)
		s.testService.memory, s.testService.settling, s.testService.redirected = false, false, true
		for i := range s.backends {
			s.backends[i].mode, s.backends[i].redirect = model.GUE, i != 1
		}
		d := loadTestDirector(t, w)
		at := firstTurnOf(d, 3)
		goes := func(h packet.TCPHeader) int {
			action, out := d.run(t, build(ip(s.client, s.vip), h), 0)
			return s.receiver(t, action, out)
		}
		plain := syn(nil)
		plain.Options = linuxSYN
		for i := range 12 {
			if got := goes(plain); got != 0 {
				t.Errorf("a SYN that does not ask went to backend %d, want the slot's owner", got)
			}
			want := (at + i) % 3
			if want == 1 {
				want = 0 // it has no agent
			}
			if got := goes(syn(asking(linuxSYN...))); got != want {
				t.Errorf("SYN %d that asks went to backend %d, want %d", i, got, want)
			}
			s.want(t, d, clientPort, ackFlag, 0, "what falls back is the ring's")
		}
	}
}

// A backend that the policy chooses may not get the connection: it cannot take over a redirected one,
// or flow memory has no place. The load is that of the backend which gets it.
func testLoadsOfReceivers(t *testing.T) {
	asks := func(uint16) packet.TCPHeader { return syn(asking(linuxSYN...)) }
	opens := func(port uint16) packet.TCPHeader {
		return packet.TCPHeader{Src: port, Dst: servicePort, Flags: packet.SYN}
	}
	for _, c := range []struct {
		name        string
		policy      model.Policy
		redirected  bool
		header      func(port uint16) packet.TCPHeader
		connections int
	}{
		{"p2c, refused by redirection", model.P2C, true, asks, 3},
		{"least-conn, refused by redirection", model.LeastConn, true, asks, 3},
		{"p2c, no place", model.P2C, false, opens, 4 * testFlowBuckets * int(flows.Ways)},
		{"least-conn, no place", model.LeastConn, false, opens, 4 * testFlowBuckets * int(flows.Ways)},
	} {
		w, s := amongAll(c.policy, true, 4, 2, 3)
		if c.redirected {
			s.testService.memory, s.testService.settling, s.testService.redirected = false, false, true
			for i := range s.backends {
				s.backends[i].mode = model.GUE
			}
			s.backends[0].redirect = true // it has no turn
		}
		d := loadTestDirector(t, w)
		d.putLoads(t, s.testService)
		var want, got [4]uint32
		for i := range c.connections {
			action, out := d.run(t, build(ip(s.client, s.vip), c.header(uint16(1+i))), 0)
			want[s.receiver(t, action, out)]++
		}
		for i := range got {
			got[i] = d.load(t, s.first+uint32(i)).Opened / uint32(abi.LoadScaleLOAD_CONNECTION)
		}
		if want[0]+want[1] == 0 {
			t.Errorf("%s: the policy's choice got all: %v", c.name, want)
		}
		if got != want {
			t.Errorf("%s: backends have loads of %v connections, and got %v", c.name, got, want)
		}
	}
}
