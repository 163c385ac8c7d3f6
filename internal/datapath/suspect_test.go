package datapath

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// TestSuspect: a backend that is lost from sight keeps its way for a while, and then is down.
func TestSuspect(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	address := netip.MustParseAddr("10.0.0.11")
	addNeighbor(t, address)
	d := openTest(t, model.Limits{})
	table := tableOf(2, 1, 0)
	table.Services[1].Backends[0].Mode = model.GUE // its agents send packets on: nothing to wait for
	table.Suspect = time.Hour
	must(t, d.Set(table))

	state := func(service int) model.BackendState { return statusOf(t, d).Services[service].Backends[0].State }
	removeNeighbor(t, address)
	eventually(t, "the backend is a suspect", func() bool { return state(0) == model.Suspect })
	if got := state(1); got != model.Down {
		t.Errorf("in gue it is %s, want down", got)
	}
	if b := statusOf(t, d).Services[0].Backends[0]; b.NextHop != neighborMAC(address) || b.Interface != "wire0" || b.MTU != 1500 {
		t.Errorf("the suspect is %+v, want its neighbor on wire0, 1500 bytes, as before", b)
	}
	if b := statusOf(t, d).Services[0].Backends[0]; b.Unreachable == "" || *b.Share != 0 {
		t.Errorf("a suspect by its neighbor has share %v, and it is said why: %q", *b.Share, b.Unreachable)
	}
	// Its connections' packets still go there.
	if listed := d.Unreachable(10); len(listed) != 1 || listed[0].Backend != statusOf(t, d).Services[1].Backends[0].Name {
		t.Errorf("as without packets are listed %+v, want the one of gue alone", listed)
	}
	addNeighbor(t, address)
	eventually(t, "it is back", func() bool { return state(0) == model.Active && state(1) == model.Active })

	// The results of checks have the same effect, and come by Set.
	table = tableOf(2, 1, 0)
	table.Suspect, table.Services[0].Backends[0].State = time.Hour, model.Suspect
	must(t, d.Set(table))
	if b := statusOf(t, d).Services[0].Backends[0]; b.State != model.Suspect || b.Unreachable != "" {
		t.Errorf("when its checks fail it is %s and %q, want suspect and nothing of a way", b.State, b.Unreachable)
	}
	// Another process does not know how long it has been one.
	must(t, d.Close())
	d = openTest(t, model.Limits{})
	table.Suspect = time.Millisecond
	must(t, d.Set(table))
	eventually(t, "its time is over", func() bool { return state(0) == model.Down })
	must(t, d.Set(tableOf(2, 1, 0)))
	if got := state(0); got != model.Active {
		t.Errorf("when its checks pass again it is %s, want active", got)
	}
	table = tableOf(2, 1, 0)
	table.Suspect, table.Services[0].Backends[0].State = time.Hour, model.Down
	must(t, d.Set(table))
	if got := state(0); got != model.Down {
		t.Errorf("when the configuration says so it is %s, want down", got)
	}
	if n := len(d.suspicions.until); n != 0 {
		t.Errorf("%d suspicions are left, want none", n)
	}
}

func removeNeighbor(t *testing.T, address netip.Addr) {
	t.Helper()
	wire, err := netlink.LinkByName("wire0")
	must(t, err)
	must(t, netlink.NeighDel(&netlink.Neigh{LinkIndex: wire.Attrs().Index, IP: address.AsSlice()}))
}
