package datapath

import (
	"testing"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// TestInterfaceMadeAnew: the program follows an interface to the next of its name.
func TestInterfaceMadeAnew(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 1, 0)))
	must(t, netlink.LinkDel(wire(t)))
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire0"}, PeerName: "wire1"}))
	eventually(t, "the program is on the new wire0", func() bool {
		i := statusOf(t, d).Interfaces
		return len(i) == 1 && i[0].Index == wire(t).Attrs().Index && i[0].XDP == "native"
	})
}

// TestInterfaceByOtherName: an interface has other names, and may get another.
func TestInterfaceByOtherName(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	must(t, netlink.LinkAddAltName(wire(t), "uplink0"))
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 1, 0)))
	id := pinnedLinkID(t)
	for _, name := range []string{"uplink0", "wire0"} {
		table := tableOf(1, 1, 0)
		table.Interfaces = []string{name}
		must(t, d.Set(table))
		if i := statusOf(t, d).Interfaces; len(i) != 1 || i[0].Name != name || i[0].XDP != "native" {
			t.Errorf("interfaces are %+v, want %s with native XDP", i, name)
		}
	}
	if now := pinnedLinkID(t); now != id {
		t.Errorf("the XDP link was made anew (id %d, was %d): packets slipped through", now, id)
	}
}
