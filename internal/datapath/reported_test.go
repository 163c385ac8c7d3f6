package datapath

import (
	"net/netip"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// target is one of the backends.
func (l *loadsLife) target(backend int) model.Target {
	b := l.Backends[backend]
	return model.Target{
		Service: model.ServiceID{Segment: l.Segment, VIP: l.VIP, Protocol: l.Protocol, Port: l.Port},
		Backend: netip.AddrPortFrom(b.Address, b.Port),
	}
}

// report sets loads as agents report them.
func (l *loadsLife) report(t *testing.T, connections ...uint32) {
	t.Helper()
	for i, n := range connections {
		if !l.SetLoad(l.target(i), n*uint32(abi.LoadScaleLOAD_CONNECTION), true) {
			t.Errorf("nobody asks for the load of backend %d", i)
		}
	}
}

// Connections are placed by the reported loads, plus the connections that were placed since.
// Reported loads do not fade, and do not count for another backend that has the index by now.
func TestReportedLoads(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	l := &loadsLife{openTest(t, model.Limits{}), tableOf(1, 3, 0).Services[0]}
	l.Policy = model.LeastConn
	l.Ring.Turns = []uint32{0, 1, 2}
	for i := range l.Backends {
		l.Backends[i].Mode, l.Backends[i].Weight = model.L2DSR, 100
	}
	l.set(t)
	l.report(t, 90, 3, 8)
	l.want(t, "reported", 90, 3, 8)
	l.openFrom(t, 20000, 15)
	l.want(t, "connections go where the least are", 90, 13, 13)
	l.report(t, 5, 13, 13)
	l.openFrom(t, 21000, 4)
	l.want(t, "the next report", 9, 13, 13)
	if got, now := l.loads.Entries[l.index(0)].Period, nowPeriod(t); got != now+1 {
		t.Errorf("a load that was reported is of period %d while it is %d: it is halved", got, now)
	}

	// Nobody has reported enough: it is round-robin's turn, and loads are kept for later.
	l.Policy = model.RoundRobin
	l.set(t)
	l.report(t, 7, 8, 9)
	l.want(t, "degraded", 7, 8, 9)
	l.openFrom(t, 22000, 30)
	l.want(t, "placed in turn", 7, 8, 9)
	l.SetLoad(l.target(0), 4*uint32(abi.LoadScaleLOAD_CONNECTION), false)
	if got, now := l.loads.Entries[l.index(0)].Period, nowPeriod(t); got > now {
		t.Errorf("a load that is to fade is of period %d while it is %d", got, now)
	}

	gone := l.target(2)
	all := l.Backends
	l.Backends, l.Ring = all[:2], model.Ring{Slots: make([]model.Slot, len(l.Ring.Slots)), Turns: []uint32{0, 1}}
	for i := range l.Ring.Slots {
		l.Ring.Slots[i] = model.Slot{Owner: uint32(i % 2), Next: model.NoBackend}
	}
	l.set(t)
	if l.SetLoad(gone, 1, true) {
		t.Error("the load of a backend that is gone is set")
	}
	l.report(t, 1, 2)
	l.Policy, l.Backends[0].Weight, l.Backends[1].Weight = model.Maglev, 0, 0
	l.set(t)
	if l.SetLoad(l.target(0), 1, true) {
		t.Error("the load of a backend is set that no policy asks for")
	}
	l.Policy, l.Backends[0].Weight, l.Backends[1].Weight = model.LeastConn, 100, 100
	l.set(t)
	l.report(t, 1, 2)
	must(t, l.Close())
	if l.SetLoad(l.target(0), 1, true) {
		t.Error("a load is set after the end")
	}
}
