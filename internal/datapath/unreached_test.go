package datapath

import (
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
)

// TestUnreached: a VIP lacks a way as long as a neighbor does not answer, and no longer, and
// none to a backend that is to get nothing.
func TestUnreached(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	table := tableOf(1, 1, 0)
	must(t, d.Set(table))
	if vip := table.Services[0].VIP; !d.Unreached()[model.Untagged(vip)] {
		t.Errorf("there is no way to a backend of %s, and the datapath does not say so", vip)
	}
	addNeighbor(t, netip.MustParseAddr("10.0.0.11"))
	eventually(t, "the backend is reached", func() bool { return len(d.Unreached()) == 0 })
	if b := statusOf(t, d).Services[0].Backends[0]; b.State != model.Active {
		t.Errorf("the backend is %s as soon as it is reached, want active", b.State)
	}
	table = tableOf(1, 2, 0)
	table.Services[0].Backends[1].State = model.Down
	must(t, d.Set(table))
	if unreached := d.Unreached(); len(unreached) > 0 {
		t.Errorf("a backend that is to get nothing has no way, and these VIPs are held back: %v", unreached)
	}
}
