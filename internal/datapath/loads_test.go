package datapath

import (
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// loadsLife is a service that goes by loads, and what its backends' are.
type loadsLife struct {
	*Datapath
	model.TableService
}

// set makes the service what it is now.
func (l *loadsLife) set(t *testing.T) {
	t.Helper()
	s := l.TableService
	s.Backends = append([]model.TableBackend{}, s.Backends...)
	must(t, l.Set(model.Table{Interfaces: []string{"wire0"}, ICMPRate: 100, Services: []model.TableService{s}}))
}

func (l *loadsLife) index(backend int) uint32 {
	return l.services[keyOf(&l.TableService)].order[backend].index
}

// give makes the loads of backends, in connections.
func (l *loadsLife) give(t *testing.T, connections ...uint32) {
	t.Helper()
	for i, n := range connections {
		// In a period that is ahead nothing is halved while the test runs.
		load := abi.Load{Opened: n * uint32(abi.LoadScaleLOAD_CONNECTION), Period: nowPeriod(t) + 1<<20, Weight: l.loads.Entries[l.index(i)].Weight}
		must(t, l.kernel.Loads.Put(l.index(i), load))
	}
}

func (l *loadsLife) want(t *testing.T, what string, connections ...uint32) {
	t.Helper()
	for i, n := range connections {
		if got := l.loads.Entries[l.index(i)].Opened; got != n*uint32(abi.LoadScaleLOAD_CONNECTION) {
			t.Errorf("%s: backend %d has a load of %d/%d connections, want %d", what, i, got, abi.LoadScaleLOAD_CONNECTION, n)
		}
	}
}

func (l *loadsLife) wantWeights(t *testing.T, what string, weights ...uint32) {
	t.Helper()
	for i, w := range weights {
		if got := l.loads.Entries[l.index(i)].Weight; got != w {
			t.Errorf("%s: the load of backend %d is divided by %d, want %d", what, i, got, w)
		}
	}
}

// open sends SYNs of so many connections.
func (l *loadsLife) open(t *testing.T, n int) {
	t.Helper()
	l.openFrom(t, 20000, n)
}

// openFrom sends them from so many ports, that one first.
func (l *loadsLife) openFrom(t *testing.T, port, n int) {
	t.Helper()
	for i := range n {
		syn := packet.TCPHeader{Src: uint16(port + i), Dst: l.Port.First, Flags: packet.SYN}
		_, _, err := l.kernel.program.Test(build(ip(client4, l.VIP), syn))
		must(t, err)
	}
}

// Backends that come, come back or get a larger weight begin with what the others have
// for their weight: they had no time to open as many connections, and must not get all.
func TestLoadsOfWhoComes(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 5)
	l := &loadsLife{openTest(t, model.Limits{}), tableOf(1, 4, 0).Services[0]}
	l.Policy = model.P2C
	for i := range l.Backends {
		l.Backends[i].Mode, l.Backends[i].Weight = model.GUE, 100
	}
	l.set(t)
	l.want(t, "nobody was there before", 0, 0, 0, 0)
	l.wantWeights(t, "set", 100, 100, 100, 100)
	l.give(t, 80, 100, 120, 0)

	l.Backends[3].State = model.Down
	l.set(t)
	l.want(t, "went down", 80, 100, 120, 0)
	l.Backends[3].State = model.Active
	l.set(t)
	l.want(t, "came back", 80, 100, 120, 100)

	l.Backends[3].Weight = 0
	l.set(t)
	l.wantWeights(t, "no new connections", 100, 100, 100, 0)
	l.give(t, 80, 100, 120, 7)
	l.Backends[3].Weight = 50
	l.set(t)
	l.want(t, "new connections again", 80, 100, 120, 50)
	l.wantWeights(t, "new connections again", 100, 100, 100, 50)
	l.Backends[3].Weight = 100
	l.set(t)
	l.want(t, "a larger weight", 80, 100, 120, 100)
	l.Backends[3].Weight = 10
	l.set(t)
	l.want(t, "a smaller weight", 80, 100, 120, 100)
	l.give(t, 80, 100, 120, 900)
	l.Backends[3].Weight = 20
	l.set(t)
	l.want(t, "more than the others have", 80, 100, 120, 900)

	all := l.Backends
	added := tableOf(1, 5, 0).Services[0]
	l.Backends = append(all[:4:4], added.Backends[4])
	l.Backends[4].Mode, l.Backends[4].Weight = model.GUE, 40
	l.set(t)
	l.want(t, "a new one", 80, 100, 120, 900, 150) // 1200 for 320
	gone := l.index(4)
	l.Backends = all
	l.set(t)
	if load := l.loads.Entries[gone]; load != (abi.Load{}) {
		t.Errorf("a backend that is gone has left %+v", load)
	}
}

// The program counts what it opens where the policy asks for it, and what it has counted
// outlives the process.
func TestLoadsAreCounted(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 2)
	l := &loadsLife{openTest(t, model.Limits{}), tableOf(1, 2, 0).Services[0]}
	for i := range l.Backends {
		l.Backends[i].Mode = model.GUE
	}
	for i := range l.Ring.Slots {
		l.Ring.Slots[i] = model.Slot{Owner: 0, Next: 1}
	}
	l.set(t)
	l.open(t, 100)
	l.want(t, "another policy", 0, 0)
	l.wantWeights(t, "another policy", 0, 0)

	l.Policy = model.P2C
	l.Backends[0].Weight, l.Backends[1].Weight = 300, 100
	l.set(t)
	l.give(t, 0, 0)
	l.open(t, 400)
	counted := func(backend int) uint32 {
		return l.loads.Entries[l.index(backend)].Opened / uint32(abi.LoadScaleLOAD_CONNECTION)
	}
	first, second := counted(0), counted(1)
	// All slots are the first one's. It has 9/8 of the second one's load by weight in the end.
	if first+second != 400 || first < 300 || first > 320 {
		t.Errorf("of 400 connections %d and %d were opened, want 3 to 1 with an eighth more for the owner", first, second)
	}
	must(t, l.Close())
	l.Datapath = openTest(t, model.Limits{})
	l.set(t)
	l.want(t, "another process", first, second)

	l.Policy, l.Backends[0].Weight, l.Backends[1].Weight = model.Maglev, 0, 0
	l.set(t)
	l.open(t, 100)
	l.want(t, "another policy again", first, second)
	l.wantWeights(t, "another policy again", 0, 0)
}
