package test

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// How many fresh flows a director shares in a second (docs/internals/datapath.md): all CPUs
// together, and beyond that each network of clients, as a share of that.
const (
	freshShared        = 16384
	freshSharedNetwork = 64
	freshSharedAtOnce  = 65536 // to a director that is importing everything
)

// A director shares few flows of a flood, and of none if they never go on. Clients' flows
// beside the flood are shared anyway, and go on when the director is lost.
//
//	client --- router --- switch --- director, director2
//	flooder ---            --- backend1, backend2, backend3
//	                       --- store (etcd)
//
// It does not run beside other tests: the flood needs a core to send more flows than may be shared.
func TestFloodIsSharedWithinABudget(t *testing.T) {
	l := newSharingLab(t, "")
	l.keys, l.drain = "  policy: least-conn\n", time.Minute
	l.apply(0, everyBackend(3)...)
	l.apply(0, heavyBackends...) // since then datagrams are remembered, too
	f := newFlooder(l.lab)
	for _, b := range l.backends {
		// Backends lose their answers to a flood at once: they need not be strong.
		on(t, b, "ip", "route", "add", "blackhole", floodSources.String())
	}
	to := netip.AddrPortFrom(l.way.vip(), memoryPort)
	before := l.shared()
	goesOn := slices.IndexFunc(floodModes, func(m floodMode) bool { return m.name == "synack" })
	for i, mode := range floodModes {
		if i != goesOn {
			l.floodOf(f, mode, to)
		}
	}
	for range idleConnections + 1 {
		l.dial(l.way, "tcp")
	}
	l.goOn("before a flood that goes on")
	l.directors[1].waitFor("know of connections that begin", func() bool { return l.status(1).Flows.Remembered >= len(l.flows) })
	if shared := l.shared().since(before); shared.flows > shared.besides(len(l.flows)) {
		t.Errorf("%d flows are shared, and %d are none of a flood that never goes on", shared.flows, len(l.flows))
	}
	l.floodThatGoesOn(f, floodModes[goesOn], to)
	l.lose(0)
	l.goOn("with another director")
}

// floodOf sends a flood whose flows the director remembers.
func (l *sharingLab) floodOf(f *flooder, mode floodMode, to netip.AddrPort) {
	l.t.Helper()
	before, _ := l.shared().budget(0)
	_, err := f.send(mode, to, 300*time.Millisecond)
	l.must(err)
	l.directors[0].waitFor("remember flows of the flood "+mode.name, func() bool {
		now, _ := l.shared().budget(0)
		return now > before+1000
	})
}

// floodThatGoesOn floods until there were more flows than the budget allows, and until connections
// that go on meanwhile are sustained at both directors. Then it judges what was shared.
func (l *sharingLab) floodThatGoesOn(f *flooder, mode floodMode, to netip.AddrPort) {
	l.t.Helper()
	// One network and, mostly, one CPU have the smallest budget.
	f.from, f.rate = netip.PrefixFrom(floodSources.Addr(), 24), 3*freshShared
	last := len(l.flows) - 1
	silent := l.flows[last:]
	l.flows = l.flows[:last]
	before := l.shared()
	began := monotonicSecond(l.t)
	ctx, cancel := context.WithCancel(l.t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- f.sendFromOneCPU(ctx, mode, to) }()
	l.directors[1].waitFor("know what lasts, beside a flood", func() bool {
		l.goOn("beside a flood")
		// The flood's end may be a second later.
		all, most := l.shared().since(before).budget(monotonicSecond(l.t) - began + 2)
		return l.kept(1) >= last && all > most+freshShared/8
	})
	cancel()
	l.must(<-ended)
	flooded := l.shared().since(before)
	seconds := monotonicSecond(l.t) - began + 1
	all, most := flooded.budget(seconds)
	// This flow is shared after all of the flood.
	l.flows = append(l.flows, silent...)
	l.directors[1].waitFor("know what lasts, after a flood", func() bool {
		l.goOn("after a flood")
		return l.kept(1) > last
	})
	now := l.shared().since(before)
	most += now.besides(len(l.flows))
	l.t.Logf("of %d flows of a flood in %d seconds %d are shared, at most %d", all, seconds, now.flows, most)
	if now.flows > most {
		l.t.Errorf("%d flows are shared, and the budget allows of %d", now.flows, most)
	}
	if now.flows < most/4 {
		l.t.Errorf("%d flows are shared, and the budget is not used up: this test shows nothing", now.flows)
	}
}

// sendFromOneCPU floods a service until the context ends. The sending CPU handles the packet too,
// unless another CPU is about to.
func (f *flooder) sendFromOneCPU(ctx context.Context, mode floodMode, to netip.AddrPort) error {
	runtime.LockOSThread() // and never unlocked: the thread keeps its one CPU
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("read own CPUs: %w", err)
	}
	for cpu := range runtime.NumCPU() {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("stay on one CPU: %w", err)
	}
	for ctx.Err() == nil {
		if _, err := f.send(mode, to, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// monotonicSecond is the second of the clock that the program's budgets use.
func monotonicSecond(t *testing.T) uint64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal("clock:", err)
	}
	return uint64(now.Sec)
}

// sharing is what the first director has shared with the other one, and how many flows it could share.
type sharing struct {
	flows      uint64   // shared
	everything uint64   // how often everything was shared
	begun      []uint64 // flows that each CPU has begun to remember
}

func (l *sharingLab) shared() sharing {
	l.t.Helper()
	peer := l.status(0).Peers[0]
	now := sharing{flows: peer.Shared, everything: peer.Everything}
	files, err := filepath.Glob(filepath.Join(l.hosts[0].BPFFS(), "weir", "*", "flow_events"))
	if err != nil || len(files) != 1 {
		l.t.Fatalf("flow_events is pinned at %q: %v", files, err)
	}
	events, err := ebpf.LoadPinnedMap(files[0], &ebpf.LoadPinOptions{ReadOnly: true})
	l.must(err)
	defer events.Close()
	const inserted, moved = 0, 2 // enum flow_event
	var some, more []uint64
	l.must(events.Lookup(uint32(inserted), &some))
	l.must(events.Lookup(uint32(moved), &more))
	for cpu := range some {
		now.begun = append(now.begun, some[cpu]+more[cpu])
	}
	return now
}

func (t sharing) since(before sharing) sharing {
	t.flows -= before.flows
	t.everything -= before.everything
	t.begun = slices.Clone(t.begun)
	for cpu := range t.begun {
		t.begun[cpu] -= before.begun[cpu]
	}
	return t
}

// besides is how often this many flows may be shared besides a flood: each when it has begun and when
// it lasts, and everything once more.
func (t sharing) besides(flows int) uint64 {
	return 2*uint64(flows) + t.everything*freshSharedAtOnce
}

// budget is how many flows have begun, and how many of them may be shared in this many seconds.
func (t sharing) budget(seconds uint64) (all, most uint64) {
	share := uint64(freshShared / runtime.NumCPU())
	for _, begun := range t.begun {
		all += begun
		most += min(begun, seconds*(share+share/freshSharedNetwork))
	}
	return all, most
}
