package datapath

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// failAfterLookups makes Set fail where the lookups are written already: it cannot
// attach where another program is.
func failAfterLookups(t *testing.T, d *Datapath, table model.Table) {
	t.Helper()
	other, err := netlink.LinkByName("wire1")
	must(t, err)
	must(t, netlink.LinkSetXdpFdWithFlags(other, d.kernel.program.FD(), unix.XDP_FLAGS_DRV_MODE))
	table.Interfaces = []string{"wire0", "wire1"}
	if err := d.Set(table); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("error is %v, want %v", err, unix.EBUSY)
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
