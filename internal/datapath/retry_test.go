package datapath

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// failAfterLookups makes Set fail where the lookups are written already: it cannot attach
// where something else is in the place of the link's pin.
func failAfterLookups(t *testing.T, d *Datapath, table model.Table) {
	t.Helper()
	taken := d.kernel.linkPin("wire1")
	must(t, os.Mkdir(taken, 0o700))
	table.Interfaces = []string{"wire0", "wire1"}
	err := d.Set(table)
	must(t, os.Remove(taken))
	if err == nil || !strings.Contains(err.Error(), "attach to wire") {
		t.Fatalf("error is %v, want that it cannot attach", err)
	}
}

// TestFailedSetIsTakenBack: what a failed Set wrote is taken out again by the next
// that does not have it. Else its VIP would go on, by an index that others get.
func TestFailedSetIsTakenBack(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 2, 0)))
	failed := tableOf(3, 2, 0)
	failed.Services[2].Port = model.PortRange{First: 1000, Last: 1999}
	failAfterLookups(t, d, failed)
	must(t, d.Set(tableOf(1, 2, 0)))
	kernel := newLookups(0)
	must(t, readEndpoints(d.kernel.Services4, d.kernel.Services6, kernel.services))
	must(t, readPrefixes(d.kernel, kernel.ranges))
	if len(kernel.services) != 2 || len(kernel.ranges) != 0 {
		t.Errorf("the kernel has %v and %v, want the VIP and the port of s0 only", kernel.services, kernel.ranges)
	}
}

// TestFailedSetReleasesOnce: indexes that were left over, taken up by a Set that
// failed and not wanted by the next are given back once, not twice.
func TestFailedSetReleasesOnce(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	first := openTest(t, model.Limits{})
	must(t, first.Set(tableOf(3, 2, 0)))
	must(t, first.Close())
	second := openTest(t, model.Limits{})
	failAfterLookups(t, second, tableOf(2, 2, 0))
	must(t, second.Set(tableOf(1, 2, 0)))
	for name, x := range map[string]*indexes{"service": second.serviceIndexes, "backend": second.backendIndexes} {
		seen := map[uint32]bool{}
		for _, r := range x.resting {
			if seen[r.index] {
				t.Errorf("%s index %d is to be given away twice", name, r.index)
			}
			seen[r.index] = true
		}
	}
	if n := entriesInUse(second); n != 2 {
		t.Errorf("%d backend entries are in use, want 2", n)
	}
}

// TestSetWithoutRoom: a change that needs more indexes than there are is refused,
// again and again, and what runs is as it was.
func TestSetWithoutRoom(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{Backends: 4})
	must(t, d.Set(tableOf(1, 3, 0)))
	other := tableOf(1, 4, 0)
	for i := range other.Services[0].Backends {
		other.Services[0].Backends[i].Address = netip.AddrFrom4([4]byte{10, 0, 0, byte(111 + i)})
	}
	for range 3 {
		if err := d.Set(other); !errors.Is(err, errNoIndex) {
			t.Fatalf("error is %v, want %v", err, errNoIndex)
		}
		if b := statusOf(t, d).Services[0].Backends; len(b) != 3 || b[0].Slots != 341 {
			t.Errorf("backends are %+v, want the three that run", b)
		}
	}
	must(t, d.Set(tableOf(1, 3, 0)))
	if n := entriesInUse(d); n != 3 {
		t.Errorf("%d backend entries are in use, want 3", n)
	}
}

// failBetween makes Set fail where the first service has its index already, and a later one
// finds no room.
func failBetween(t *testing.T, d *Datapath, table model.Table) {
	t.Helper()
	more := tableOf(2, 4, 0).Services[1]
	more.Name, more.VIP = "more", netip.MustParseAddr("203.0.113.1")
	table.Services = append(table.Services[:len(table.Services):len(table.Services)], more)
	if err := d.Set(table); !errors.Is(err, errNoIndex) {
		t.Fatalf("error is %v, want %v", err, errNoIndex)
	}
}

// TestFailedSetIsFinished: the next Set does what one that failed has left undone, though
// to it nothing changes.
func TestFailedSetIsFinished(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	d := openTest(t, model.Limits{Backends: 9})
	before := tableOf(2, 3, 0)
	for i := range before.Services[0].Backends {
		before.Services[0].Backends[i].Mode = model.NAT
	}
	after := tableOf(2, 3, 0)
	after.Services[0].Backends = after.Services[0].Backends[:2]
	after.Services[0].Ring.Slots = []model.Slot{{Owner: 1, Next: 0}, {Owner: 0, Next: 1}}
	for name, fail := range map[string]func(*testing.T, *Datapath, model.Table){"after lookups": failAfterLookups, "between services": failBetween} {
		must(t, d.Set(before))
		if wrong := d.differsFrom(t, &before); len(wrong) > 0 {
			t.Fatalf("failed %s, before it: %q", name, wrong)
		}
		fail(t, d, after)
		must(t, d.Set(after))
		if wrong := d.differsFrom(t, &after); len(wrong) > 0 {
			t.Errorf("failed %s: %q", name, wrong)
		}
	}
}
