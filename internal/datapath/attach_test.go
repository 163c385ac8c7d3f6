package datapath

import (
	"slices"
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
		configured := ""
		if name != "wire0" {
			configured = name
		}
		if i := statusOf(t, d).Interfaces; len(i) != 1 || i[0].Name != "wire0" || i[0].Configured != configured || i[0].XDP != "native" {
			t.Errorf("interfaces are %+v, want wire0 with native XDP, which the table calls %s", i, name)
		}
	}
	if now := pinnedLinkID(t); now != id {
		t.Errorf("the XDP link was made anew (id %d, was %d): packets slipped through", now, id)
	}
}

// TestInterfaceWithADot: BPF file systems have no dots, and interfaces of VLANs have.
func TestInterfaceWithADot(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	link := wire(t)
	must(t, netlink.LinkSetDown(link))
	must(t, netlink.LinkSetName(link, "wire.100"))
	must(t, netlink.LinkSetUp(link))
	table := tableOf(1, 1, 0)
	table.Interfaces = []string{"wire.100"}
	for range 2 { // the second process takes over what the first has left
		d := openTest(t, model.Limits{})
		must(t, d.Set(table))
		if i := statusOf(t, d).Interfaces; len(i) != 1 || i[0].Name != "wire.100" || i[0].XDP != "native" {
			t.Errorf("interfaces are %+v, want wire.100 with native XDP", i)
		}
		must(t, d.Close())
	}
	must(t, Detach("/sys/fs/bpf/weir"))
	if link, err := netlink.LinkByName("wire.100"); err != nil || link.Attrs().Xdp.Attached {
		t.Errorf("wire.100 is %+v after the datapath was detached, %v", link, err)
	}
}

// TestHeldUntilAdmitted: a director that has yet to learn something gets no packets, unless
// it had them before it began. From then on every Set lets them in.
func TestHeldUntilAdmitted(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire2"}, PeerName: "wire3"}))
	table := tableOf(1, 1, 0)
	want := func(d *Datapath, names ...string) {
		t.Helper()
		var attached []string
		for _, i := range statusOf(t, d).Interfaces {
			if i.XDP == "native" {
				attached = append(attached, i.Name)
			}
		}
		if !slices.Equal(attached, names) {
			t.Errorf("the program is on %q, want %q", attached, names)
		}
	}
	hold := func() *Datapath {
		t.Helper()
		d, err := Open(Options{Pin: "/sys/fs/bpf/weir", Hold: true})
		must(t, err)
		t.Cleanup(func() { d.Close() })
		return d
	}
	d := hold()
	must(t, d.Set(table))
	must(t, d.Set(tableOf(2, 1, 0)))
	want(d)
	if xdp := wire(t).Attrs().Xdp; xdp != nil && xdp.Attached {
		t.Error("a program is on wire0, and nobody has admitted packets")
	}
	must(t, d.Close())

	d = hold() // of what one has left that never admitted any
	must(t, d.Set(table))
	want(d)
	must(t, d.Admit())
	want(d, "wire0")
	link := pinnedLinkID(t)
	must(t, d.Close())

	d = hold()
	table.Interfaces = []string{"wire0", "wire2"}
	must(t, d.Set(table))
	want(d, "wire0")
	if now := pinnedLinkID(t); now != link {
		t.Errorf("the XDP link was made anew (id %d, was %d): packets slipped through", now, link)
	}
	must(t, d.Admit())
	want(d, "wire0", "wire2")
	table.Interfaces = []string{"wire0"}
	must(t, d.Set(table))
	table.Interfaces = []string{"wire0", "wire2"}
	must(t, d.Set(table))
	want(d, "wire0", "wire2")
}

// TestChangedMode: a process that is started with another director.xdp attaches what it adopts in that
// mode. Where an interface cannot, it goes on as it was, and that is told.
func TestChangedMode(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "slow0"}})) // has no native XDP
	table := tableOf(1, 1, 0)
	table.Interfaces = []string{"wire0", "slow0"}
	for _, step := range []struct {
		mode        model.XDPMode
		wire, slow  string
		differences int
	}{
		{model.XDPAuto, "native", "generic", 0},
		{model.XDPGeneric, "generic", "generic", 0},
		{model.XDPAuto, "generic", "generic", 0},
		{model.XDPNative, "native", "generic", 1},
	} {
		d, err := Open(Options{Pin: "/sys/fs/bpf/weir", Mode: step.mode})
		must(t, err)
		must(t, d.Set(table))
		for name, want := range map[string]string{"wire0": step.wire, "slow0": step.slow} {
			if has := xdpMode(linkIndex(t, name)); has != want {
				t.Errorf("with director.xdp %s, %s has mode %q, want %s", step.mode, name, has, want)
			}
		}
		found := differences(t, d.Parts(nil), "xdp")
		if len(found) != step.differences || len(found) > 0 && (found[0].What != "slow0" || found[0].Repair != nil) {
			t.Errorf("with director.xdp %s, part xdp differs in %+v", step.mode, found)
		}
		must(t, d.Close())
	}
}
