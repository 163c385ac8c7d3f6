package datapath

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// fullNATTable is one service of full NAT with these sources.
func fullNATTable(ports model.PortRange, sources ...string) model.Table {
	t := tableOf(1, 2, 0)
	for i := range t.Services[0].Backends {
		b := &t.Services[0].Backends[i]
		b.Mode, b.SNAT, b.Port = model.NAT, true, 8080
	}
	t.SNAT.Ports = ports
	for _, s := range sources {
		t.SNAT.Addresses = append(t.SNAT.Addresses, netip.MustParseAddr(s))
	}
	return t
}

func headerOf(t *testing.T, d *Datapath) (flows.Layout, bool) {
	t.Helper()
	header, found, err := d.kernel.snatHeader()
	must(t, err)
	return header, found
}

// TestSetSwitchesFullNAT: a table is made for full NAT, kept as long as it fits,
// also by the next process, and freed when it is not needed.
func TestSetSwitchesFullNAT(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 2, 0)))
	if _, found := headerOf(t, d); found {
		t.Error("there is a table without any full NAT")
	}
	table := fullNATTable(model.PortRange{First: 1024, Last: 32767}, "2001:db8::5", "192.0.2.5", "192.0.2.6")
	must(t, d.Set(table))
	first, _ := headerOf(t, d)
	if first.PortsFirst != 1024 || first.Ports != 31744 || first.Addresses4 != 2 || first.Addresses6 != 1 ||
		first.Sources[0] != abi.AddressBytes(table.SNAT.Addresses[1]) || first.Sources[2] != abi.AddressBytes(table.SNAT.Addresses[0]) {
		t.Errorf("header is ports %d and %d, addresses %d and %d, %v; want 31744 ports from 1024, IPv4 first",
			first.PortsFirst, first.Ports, first.Addresses4, first.Addresses6, first.Sources[:3])
	}
	must(t, d.Set(table))
	must(t, d.Close())

	d = openTest(t, model.Limits{})
	must(t, d.Set(table))
	if kept, _ := headerOf(t, d); kept != first {
		t.Error("the same sources made another table: connections broke")
	}
	table.SNAT.Ports.Last = 2000 // 977 ports, of which 61 buckets are full
	must(t, d.Set(table))
	if other, _ := headerOf(t, d); other.Ports != 976 || other.Salt == first.Salt {
		t.Errorf("with 977 ports the table has %d, and salt %#x after %#x", other.Ports, other.Salt, first.Salt)
	}
	must(t, d.Set(tableOf(1, 2, 0)))
	if _, found := headerOf(t, d); found {
		t.Error("the table stays when no service is full NAT any more")
	}
}

func TestSetRefusesFullNAT(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	few := fullNATTable(model.PortRange{First: 1000, Last: 1014}, "192.0.2.5")
	if err := d.Set(few); err == nil || !strings.Contains(err.Error(), "director.snat.ports 1000-1014 are fewer than 16 ports") {
		t.Errorf("15 ports: %v", err)
	}
	many := fullNATTable(model.PortRange{First: 1000, Last: 1999})
	for i := range 63 {
		many.SNAT.Addresses = append(many.SNAT.Addresses, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	if err := d.Set(many); err == nil || !strings.Contains(err.Error(), "63 addresses in director.snat.addresses are more than 62") {
		t.Errorf("63 addresses: %v", err)
	}
}

// TestRepliesOfRanges: a nat service of many ports takes a few prefixes, and a
// backend that full NAT shares belongs to the service without it.
func TestRepliesOfRanges(t *testing.T) {
	t.Parallel()
	ranged := &service{key: serviceKey{vip: netip.MustParseAddr("192.0.2.1"), protocol: model.TCP}}
	backendOf := func(index uint32, port uint16, snat bool) *backend {
		return &backend{index: index, desired: model.TableBackend{Address: netip.MustParseAddr("10.0.0.1"), Port: port, Mode: model.NAT, SNAT: snat}}
	}
	ranged.order = []*backend{backendOf(1, 0, false)}
	single := &service{key: serviceKey{vip: netip.MustParseAddr("192.0.2.2"), protocol: model.UDP, port: model.PortRange{First: 53, Last: 53}}}
	single.order = []*backend{backendOf(2, 0, false)}
	shared := &service{key: serviceKey{vip: netip.MustParseAddr("192.0.2.3"), protocol: model.UDP, port: model.PortRange{First: 54, Last: 54}}}
	shared.order = []*backend{backendOf(3, 53, true)}
	for _, order := range [][]*service{{ranged, single, shared}, {shared, single, ranged}} {
		l := newLookups(0)
		for _, s := range order {
			l.add(s)
		}
		all := prefix{endpoint{address: netip.MustParseAddr("10.0.0.1"), protocol: 6}, 0, 1}
		if got, found := l.ranges[all]; !found || got != 1 || len(l.ranges) != 2 {
			t.Errorf("ranges are %v, want all ports of the VIP and of backend 1", l.ranges)
		}
		dns := endpoint{address: netip.MustParseAddr("10.0.0.1"), protocol: 17, port: 53}
		if got := l.replies[dns]; got != 2 || len(l.replies) != 1 {
			t.Errorf("replies are %v, want port 53 of backend 2", l.replies)
		}
		if !l.haveReplies() {
			t.Error("replies are not looked up")
		}
	}
}

// undoLinks are the interfaces on which replies of this host are translated, by a
// pinned link or, before Linux 6.6, by a filter.
func undoLinks(t *testing.T) (names []string) {
	t.Helper()
	pins, err := filepath.Glob("/sys/fs/bpf/weir/" + undoHook.pinPrefix + "*")
	must(t, err)
	for _, pin := range pins {
		names = append(names, filepath.Base(pin)[len(undoHook.pinPrefix):])
	}
	if undoFilters(t) > 0 {
		names = append(names, "wire0")
	}
	return names
}

// undoFilters counts the filters on wire0 that have the program.
func undoFilters(t *testing.T) (n int) {
	t.Helper()
	wire, err := netlink.LinkByName("wire0")
	must(t, err)
	list, err := netlink.FilterList(wire, netlink.HANDLE_MIN_EGRESS)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // no clsact
		return 0
	}
	must(t, err)
	for _, f := range list {
		if bpf, ok := f.(*netlink.BpfFilter); ok && bpf.Name == undoHook.Name {
			n++
		}
	}
	return n
}

// TestUndoFollowsNAT: the program on the way out is there while a service is nat,
// survives a restart, and goes with everything else.
func TestUndoFollowsNAT(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	nat := fullNATTable(model.PortRange{First: 1024, Last: 2047}, "192.0.2.5")
	for _, step := range []struct {
		table model.Table
		want  []string
	}{{tableOf(1, 2, 0), nil}, {nat, []string{"wire0"}}, {nat, []string{"wire0"}}, {tableOf(1, 2, 0), nil}, {nat, []string{"wire0"}}} {
		must(t, d.Set(step.table))
		if got := undoLinks(t); !slices.Equal(got, step.want) {
			t.Errorf("translated on the way out of %q, want %q", got, step.want)
		}
	}
	must(t, d.Close())
	d = openTest(t, model.Limits{})
	must(t, d.Set(nat))
	if got := undoLinks(t); !slices.Equal(got, []string{"wire0"}) {
		t.Errorf("after a restart translated on the way out of %q", got)
	}
	must(t, d.Close())
	must(t, Detach("/sys/fs/bpf/weir"))
	if _, err := os.Stat("/sys/fs/bpf/weir"); !os.IsNotExist(err) {
		t.Errorf("something is left after detaching: %v", err)
	}
	if n := undoFilters(t); n != 0 {
		t.Errorf("%d filters are left after detaching", n)
	}
}

// Where there is no tcx, a filter of clsact has the program.
func TestUndoByFilter(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	wire, err := netlink.LinkByName("wire0")
	must(t, err)
	for range 2 {
		must(t, undoHook.Put(wire.Attrs().Index, d.kernel.undo.FD()))
		if n := undoFilters(t); n != 1 {
			t.Errorf("%d filters, want 1", n)
		}
	}
	must(t, d.detachTC(undoHook, []string{"wire0"}))
	if n := undoFilters(t); n != 1 {
		t.Errorf("%d filters are left of the one to keep", n)
	}
	must(t, d.Close())
	must(t, Detach("/sys/fs/bpf/weir"))
	if n := undoFilters(t); n != 0 {
		t.Errorf("%d filters are left", n)
	}
}

// A backend that is reached through a VLAN answers in it, also when the route
// says so and not the configuration.
func TestRepliesComeBackInTheBackendsVLAN(t *testing.T) {
	t.Parallel()
	s := &service{key: serviceKey{vip: netip.MustParseAddr("192.0.2.1"), protocol: model.TCP, port: model.PortRange{First: 80, Last: 80}}}
	s.order = []*backend{{index: 7, vlan: 100, desired: model.TableBackend{Address: netip.MustParseAddr("10.0.0.1"), Mode: model.NAT}}}
	replies := lookupsOf([]*service{s}).replies
	want := endpoint{segment: model.Segment{Kind: model.SegmentVLAN, ID: 100}.Key(), address: netip.MustParseAddr("10.0.0.1"), protocol: 6, port: 80}
	if index, found := replies[want]; !found || index != 7 {
		t.Errorf("replies are %v, want backend 7 at %v", replies, want)
	}
}
