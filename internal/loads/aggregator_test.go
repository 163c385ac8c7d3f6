package loads

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// sink notes what loads were set last.
type sink map[netip.AddrPort]struct {
	units uint32
	lasts bool
}

func (s sink) SetLoad(target model.Target, units uint32, lasts bool) bool {
	s[target.Backend] = struct {
		units uint32
		lasts bool
	}{units, lasts}
	return true
}

// library is an aggregator of one service, and a clock that stands still.
type library struct {
	*Aggregator
	sink
	now     time.Time
	service model.TableService
}

const vip = "192.0.2.1"

func newLibrary(weights ...uint16) *library {
	l := &library{sink: sink{}, now: time.Unix(1_800_000_000, 0)}
	l.Aggregator = NewAggregator(l.sink, slog.New(slog.DiscardHandler))
	l.clock = func() time.Time { return l.now }
	id := target(vip, 80, "10.0.0.1:0").Service
	l.service = model.TableService{Name: "web", VIP: id.VIP, Protocol: id.Protocol, Port: id.Port, Policy: model.LeastConn}
	for i, w := range weights {
		l.service.Backends = append(l.service.Backends, model.TableBackend{Address: l.backend(i).Addr(), State: model.Active, Weight: w})
	}
	l.Follow([]model.TableService{l.service})
	l.Expect(true)
	return l
}

func (l *library) backend(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 0)
}

// report is what the agent of a backend says, 100 ms before it says it again.
func (l *library) report(i int, connections uint32) {
	l.Add(uint64(i+1)<<(turnBits+lineBits), 100*time.Millisecond, []model.Load{{Target: target(vip, 80, l.backend(i).String()), Connections: connections}})
}

func (l *library) pass(d time.Duration) {
	l.now = l.now.Add(d)
	l.look()
}

func (l *library) id() model.ServiceID { return target(vip, 80, "10.0.0.1:0").Service }

func (l *library) want(t *testing.T, what string, degraded bool, connections ...float64) {
	t.Helper()
	if got := l.Degraded(l.id()); got != degraded {
		t.Errorf("%s: degraded is %v, want %v", what, got, degraded)
	}
	for i, want := range connections {
		got := l.sink[l.backend(i)]
		if float64(got.units)/UnitsPerConnection != want {
			t.Errorf("%s: backend %d has a load of %d/%d connections, want %v", what, i, got.units, UnitsPerConnection, want)
		}
		if got.lasts == degraded && got.units > 0 {
			t.Errorf("%s: that the load of backend %d lasts is %v", what, i, got.lasts)
		}
	}
}

// changed reports whether the engine was told, once.
func (l *library) changed() bool {
	select {
	case <-l.Changed():
		return true
	default:
		return false
	}
}

func TestAggregator(t *testing.T) {
	l := newLibrary(100, 100, 200, 100)
	l.changed()
	l.want(t, "nothing is reported yet", true)
	l.report(0, 8)
	l.pass(0)
	l.want(t, "one of four is reported", true)
	if l.changed() {
		t.Error("the engine is told that nothing has changed")
	}
	l.report(1, 16)
	l.pass(0)
	l.want(t, "two of four: the others are as loaded as these are, for their weight", false, 8, 16, 24, 12)
	if !l.changed() {
		t.Error("the engine is not told that loads can be gone by")
	}
	l.report(2, 3)
	l.want(t, "one that comes counts at once", false, 8, 16, 3, 12)
	l.report(3, 1)

	// Half of them go on.
	for range 10 {
		l.now = l.now.Add(50 * time.Millisecond)
		l.report(0, 8)
		l.report(1, 16)
		l.look()
	}
	l.want(t, "half of them has stopped: again as the others", false, 8, 16, 24, 12)
	if l.changed() {
		t.Error("the engine is told of something that it does nothing about")
	}
	of, backends := l.Status(l.id())
	if *of != (model.ServiceLoads{Reported: 2, Stale: 2}) || !backends[l.backend(2)].Stale || backends[l.backend(0)].Stale || l.Agents() != 2 {
		t.Errorf("the status is %+v, with %d agents, and %+v for one that has stopped", *of, l.Agents(), *backends[l.backend(2)])
	}
	for range 10 {
		l.now = l.now.Add(50 * time.Millisecond)
		l.report(0, 8)
		l.look()
	}
	// The last that is known of all: 8, 16, 3, and 1 of weights 100, 100, 200, 100.
	l.want(t, "three have stopped", true, 5.625, 5.625, 11.1875, 5.625)
	if !l.changed() {
		t.Error("the engine is not told that a service is degraded")
	}
	if of, _ := l.Status(l.id()); !of.Degraded || of.Degradations != 1 {
		t.Errorf("the status is %+v", *of)
	}
	l.report(0, 100)
	l.want(t, "a load that nobody goes by is not set", true, 5.625)

	for i := range 4 {
		l.report(i, uint32(i))
	}
	l.pass(0)
	l.want(t, "all are back at once: a ring was switched just now", true)
	l.now = l.now.Add(restsFor)
	for i := range 4 {
		l.report(i, uint32(i))
	}
	l.look()
	l.want(t, "a second later", false, 0, 1, 2, 3)
}

// Backends that get no connections need no reports, and nobody expects any of services that are
// not placed by load.
func TestWhoIsToReport(t *testing.T) {
	l := newLibrary(100, 100, 0, 100)
	l.service.Backends[3].State = model.Down
	l.Follow([]model.TableService{l.service})
	l.report(0, 1)
	l.pass(0)
	l.want(t, "one of the two that get connections is reported", false, 1, 1)
	if _, has := l.sink[l.backend(2)]; has {
		t.Error("a backend without weight got a load that nobody has reported")
	}

	l.Follow(nil)
	if l.Degraded(l.id()) {
		t.Error("a service that is gone is degraded")
	}
	l.service.Policy = model.RoundRobin
	l.Follow([]model.TableService{l.service})
	if of, _ := l.Status(l.id()); of != nil || l.Degraded(l.id()) {
		t.Errorf("round-robin waits for loads: %+v", of)
	}
	l.report(0, 1)
}

// Without the configuration nothing is degraded, and what was reported fades.
func TestLoadsThatNobodyIsToReport(t *testing.T) {
	l := newLibrary(100, 100)
	l.report(0, 4)
	l.report(1, 8)
	l.pass(0)
	l.want(t, "reported", false, 4, 8)
	l.changed()
	l.Expect(false)
	if l.Degraded(l.id()) || !l.changed() {
		t.Error("a service that nobody is to report of is degraded")
	}
	for i := range 2 {
		if got := l.sink[l.backend(i)]; got.lasts || got.units != 6*UnitsPerConnection {
			t.Errorf("backend %d has a load of %+v, want the mean of what was known, that fades", i, got)
		}
	}
	l.pass(time.Hour)
	if l.Degraded(l.id()) {
		t.Error("and an hour later it is")
	}
	l.Expect(true)
	l.want(t, "they are to report again, and have not", true)
}

func TestUnits(t *testing.T) {
	for _, test := range []struct {
		load model.Load
		want uint32
	}{
		{model.Load{}, 0},
		{model.Load{Connections: 3}, 48},
		{model.Load{Connections: 3, Queue: 2}, 80},
		{model.Load{Connections: 3, Pressure: 0.5}, 48 + 32},
		{model.Load{Pressure: 1}, 16}, // the next connection takes twice as long
		{model.Load{Connections: 1 << 31, Queue: 1 << 31, Pressure: 1}, unitsMost},
	} {
		if got := units(&test.load); got != test.want {
			t.Errorf("%+v is %d units, want %d", test.load, got, test.want)
		}
	}
}
