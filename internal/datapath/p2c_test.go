package datapath

import (
	"fmt"
	"math"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// putLoads gives backends the loads that the service says, in a period that is far
// ahead: there they are not halved while a test runs.
func (d *testDirector) putLoads(t testing.TB, s *testService) {
	t.Helper()
	for i, b := range s.backends {
		d.put(t, "loads", s.first+uint32(i), abi.Load{Opened: b.opened, Period: nowPeriod(t) + 1<<20, Weight: b.weight})
	}
}

func nowPeriod(t testing.TB) uint32 {
	t.Helper()
	period, err := loadPeriod()
	if err != nil {
		t.Fatal(err)
	}
	return period
}

func (d *testDirector) load(t testing.TB, index uint32) (load abi.Load) {
	t.Helper()
	must(t, d.Maps["loads"].Lookup(index, &load))
	return load
}

// p2cCase is a slot with an owner and a backup, or a longer row, and the backend that
// a new connection must go to.
type p2cCase struct {
	name string
	ring model.Ring // none: owner and backup
	edit func(b []testBackend)
	want int
}

// loaded gives backends their loads, in connections.
func loaded(connections ...uint32) func(b []testBackend) {
	return func(b []testBackend) {
		for i, n := range connections {
			b[i].opened = n * uint32(abi.LoadScaleLOAD_CONNECTION)
		}
	}
}

// with does both.
func with(first, second func(b []testBackend)) func(b []testBackend) {
	return func(b []testBackend) { first(b); second(b) }
}

func p2cCases() []p2cCase {
	const down, draining, free = abi.BackendStateBACKEND_DOWN, abi.BackendStateBACKEND_DRAINING, abi.BackendStateBACKEND_FREE
	list := model.Ring{Slots: []model.Slot{{Owner: 0, Next: model.ListFlag}}, Lists: []model.CandidateList{candidateList(2, 1)}}
	fixed := model.Ring{Slots: list.Slots, Lists: []model.CandidateList{candidateList(2, 1)}}
	fixed.Lists[0].Fixed = true
	lone := model.Ring{Slots: []model.Slot{{Owner: 0, Next: model.NoBackend}}}
	busy := loaded(9, 0, 0)
	weigh := func(weights ...uint32) func(b []testBackend) {
		return func(b []testBackend) {
			for i, w := range weights {
				b[i].weight = w
			}
		}
	}
	return []p2cCase{
		{"nothing is known", model.Ring{}, loaded(0, 0), 0},
		{"one connection", model.Ring{}, loaded(1, 0), 0},
		{"two connections", model.Ring{}, loaded(2, 0), 1},
		{"backup has more", model.Ring{}, loaded(2, 9), 0},
		{"an eighth more, and one", model.Ring{}, loaded(90, 79), 0},
		{"and more than that", model.Ring{}, loaded(91, 79), 1},
		{"much", model.Ring{}, loaded(1<<25, 1<<24), 1},
		{"by weight, owner", model.Ring{}, with(loaded(90, 39), weigh(200, 100)), 0},
		{"by weight, backup", model.Ring{}, with(loaded(91, 39), weigh(200, 100)), 1},
		{"largest weights", model.Ring{}, with(loaded(1<<25, 1<<24), weigh(math.MaxUint16, math.MaxUint16)), 1},
		{"owner without weight", model.Ring{}, with(busy, weigh(0, 100)), 0},
		{"backup without weight", model.Ring{}, with(busy, weigh(100, 0)), 0},
		{"no backup", lone, busy, 0},
		{"owner is down", model.Ring{}, with(loaded(0, 9), func(b []testBackend) { b[0].state = down }), 1},
		{"owner is down, list", list, with(loaded(0, 9), func(b []testBackend) { b[0].state = down }), 2},
		{"owner is draining", model.Ring{}, with(busy, func(b []testBackend) { b[0].state = draining }), 1},
		{"backup is down", model.Ring{}, with(busy, func(b []testBackend) { b[1].state = down }), 0},
		{"backup is draining", model.Ring{}, with(busy, func(b []testBackend) { b[1].state = draining }), 0},
		{"backup is gone", model.Ring{}, with(busy, func(b []testBackend) { b[1].state, b[1].gone = free, true }), 0},
		{"backup of another mode", model.Ring{}, with(busy, func(b []testBackend) { b[1].mode = model.IPIP }), 0},
		{"owner of another mode", model.Ring{}, with(busy, func(b []testBackend) { b[0].mode = model.IPIP }), 0},
		{"backup is this host", model.Ring{}, with(busy, func(b []testBackend) { b[1].local = true }), 0},
		{"list", list, busy, 2},
		{"list, the later has less", list, loaded(9, 0, 9), 0},
		{"list, the first is no backup", fixed, busy, 0},
	}
}

// testP2C: where a new connection goes, and that nothing else goes by loads.
func testP2C(t *testing.T) {
	w := &testWorld{}
	type opened struct {
		scenario
		row
		want int
	}
	var all []opened
	var others []row
	for _, vip4 := range []bool{true, false} {
		for _, c := range p2cCases() {
			n := len(w.services)
			backends := make([]testBackend, 3)
			for i := range backends {
				backends[i] = testBackend{mode: model.GUE, weight: 100, address: backendAddress(vip4, 8*n+i)}
			}
			c.edit(backends)
			s := scenario{client: clientOf(vip4), testService: w.add(testService{vip: vipAddress(vip4, n), protocol: model.TCP,
				port: singlePort(servicePort), salt: uint64(n), policy: model.P2C, backends: backends, ring: c.ring})}
			name := fmt.Sprintf("%s, vip 4 %v", c.name, vip4)
			syn := packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: packet.SYN | packet.ECE | packet.CWR}
			all = append(all, opened{s, s.forward(name, s.flow(), c.want, ip(s.client, s.vip), syn), c.want})
			first, _ := twinPick(s.testService, s.flow())
			others = append(others, s.forward(name+", open", s.flow(), first, s.data(10)...),
				s.forward(name+", SYN and ACK", s.flow(), first, ip(s.client, s.vip),
					packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: packet.SYN | packet.ACK}))
			if first == 0 {
				others = append(others, s.errorRows()...)
			}
		}
	}
	d := loadTestDirector(t, w)
	d.check(t, others)
	for _, o := range all {
		for i, b := range o.backends {
			if got := d.load(t, o.first+uint32(i)).Opened; got != b.opened {
				t.Errorf("%s: backend %d has a load of %d before any connection was opened, want %d", o.row.name, i, got, b.opened)
			}
		}
		d.check(t, []row{o.row})
		for i, b := range o.backends {
			want := b.opened
			if i == o.want {
				want += uint32(abi.LoadScaleLOAD_CONNECTION)
			}
			if got := d.load(t, o.first+uint32(i)).Opened; got != want {
				t.Errorf("%s: backend %d has a load of %d, want %d", o.row.name, i, got, want)
			}
		}
	}
}

// testLoadPeriods: loads are halved for each period that has passed, are never so large
// that a number overflows, and go by the clock alone.
func testLoadPeriods(t *testing.T) {
	const one, most = uint32(abi.LoadScaleLOAD_CONNECTION), uint32(abi.LoadScaleLOAD_MOST)
	w := &testWorld{}
	s := scenario{client: client4, testService: w.add(testService{vip: vipAddress(true, 1), protocol: model.TCP, port: singlePort(servicePort),
		policy:   model.P2C,
		backends: []testBackend{{mode: model.GUE, address: backendAddress(true, 1)}, {mode: model.GUE, address: backendAddress(true, 2)}}})}
	d := loadTestDirector(t, w)
	for _, c := range []struct {
		name         string
		owner, other abi.Load // periods: before now
		want         int
		after        uint32 // load of the one that it goes to
	}{
		{"this period", abi.Load{Opened: 10 * one}, abi.Load{Opened: 5 * one}, 1, 6 * one},
		{"older is less", abi.Load{Opened: 10 * one, Period: 1}, abi.Load{Opened: 5 * one}, 0, 6 * one},
		{"both older", abi.Load{Opened: 40 * one, Period: 3}, abi.Load{Opened: 40 * one, Period: 4}, 1, 5*one/2 + one},
		{"less than a connection is left", abi.Load{Opened: one, Period: 1}, abi.Load{}, 0, one/2 + one},
		{"forgotten", abi.Load{Opened: most, Period: 31}, abi.Load{}, 0, one},
		{"long ago", abi.Load{Opened: most, Period: 40}, abi.Load{}, 0, one},
		{"never", abi.Load{Opened: 0, Period: nowPeriod(t)}, abi.Load{Opened: 0, Period: nowPeriod(t)}, 0, one},
		{"at the bound", abi.Load{Opened: most}, abi.Load{Opened: most}, 0, most},
		{"a clock that is behind", abi.Load{Opened: 10 * one, Period: math.MaxUint32}, abi.Load{Opened: 5 * one, Period: math.MaxUint32}, 1, 6 * one},
	} {
		t.Run(c.name, func(t *testing.T) {
			syn := s.forward(c.name, s.flow(), c.want, ip(s.client, s.vip), packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: packet.SYN})
			// A period may end between the first line and the last one: then again.
			for {
				now := nowPeriod(t)
				for i, load := range []abi.Load{c.owner, c.other} {
					load.Period, load.Weight = now-load.Period, 100
					d.put(t, "loads", s.first+uint32(i), load)
				}
				d.check(t, []row{syn})
				got := d.load(t, s.first+uint32(c.want))
				if now != nowPeriod(t) {
					continue
				}
				if got.Opened != c.after || int32(got.Period-now) < 0 || int32(got.Period-now) > 1 {
					t.Errorf("the load is %d in period %d, want %d in %d", got.Opened, got.Period, c.after, now)
				}
				break
			}
		})
	}
}
