package datapath

import (
	"maps"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// TestRestartWithSplitRange: the parts of a port range that was one service are two
// services, and must not share an index because they share its prefixes.
func TestRestartWithSplitRange(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	first := openTest(t, model.Limits{})
	table := tableOf(1, 2, 0)
	table.Services[0].Port = model.PortRange{First: 1000, Last: 1999}
	must(t, first.Set(table))
	must(t, first.Close())
	second := openTest(t, model.Limits{})
	table = tableOf(2, 2, 0)
	table.Services[1].VIP = table.Services[0].VIP
	table.Services[0].Port = model.PortRange{First: 1000, Last: 1007}
	table.Services[1].Port = model.PortRange{First: 1008, Last: 1999}
	must(t, second.Set(table))
	places := placesOf(second)
	if places["s0 itself"] == places["s1 itself"] {
		t.Errorf("both services have index %d", places["s0 itself"])
	}
}

// TestStaleEntryIsNotAdopted: a process that ended before its lookups were written
// leaves entries by service indexes that others may get.
func TestStaleEntryIsNotAdopted(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	first := openTest(t, model.Limits{})
	stale := tableOf(1, 2, 0)
	_, err := first.assignIndexes(&stale)
	must(t, err)
	must(t, first.Close())
	second := openTest(t, model.Limits{})
	table := tableOf(2, 2, 0)
	table.Services = table.Services[1:]
	must(t, second.Set(table))
	for _, b := range second.services[keyOf(&table.Services[0])].order {
		if vip := abi.AddressOf(second.entries.Entries[b.index].Vip, false); vip != table.Services[0].VIP {
			t.Errorf("backend %s has the VIP %s, want %s", b.desired.Name, vip, table.Services[0].VIP)
		}
	}
	if n := entriesInUse(second); n != 2 {
		t.Errorf("%d backend entries are in use, want 2", n)
	}
}

// TestInherited: a process knows which backends the one before it has left well, also one of
// another ABI, and also while all were used in spite of probes; but of a datapath that gets no
// packets nobody was left.
func TestInherited(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	table := tableOf(2, 3, 0)
	table.Services[0].Segment = model.Segment{Kind: model.SegmentVLAN, ID: 7}
	table.Services[0].Backends[1].State, table.Services[0].Backends[1].Unwell = model.Suspect, true
	table.Services[1].Backends[2].Unwell = true
	d := openVersion(t, nil)
	wantInherited(t, "before any process", d, nil)
	must(t, d.Set(table))
	for _, version := range []func(*ebpf.CollectionSpec){nil, otherABI, nil} {
		must(t, d.Close())
		d = openVersion(t, version)
		wantInherited(t, "after another process", d, table.Services)
		must(t, d.Set(table))
	}
	table.Services = slices.Clone(table.Services) // a table is not written to
	table.Services[1].Backends = slices.Clone(table.Services[1].Backends)
	table.Services[1].Backends[0].Unwell, table.Services[1].Backends[2].Unwell = true, false
	must(t, d.Set(table))
	kill(t, d)
	d = openVersion(t, nil)
	wantInherited(t, "after a change, and a process that was killed", d, table.Services)
	must(t, d.Close())
	must(t, os.Remove("/sys/fs/bpf/weir/xdp-wire0"))
	wantInherited(t, "when nothing is attached", openVersion(t, nil), nil)
}

// wantInherited checks that those are inherited that are not unwell.
func wantInherited(t *testing.T, when string, d *Datapath, services []model.TableService) {
	t.Helper()
	want := map[model.Target]bool{}
	for _, s := range services {
		id := model.ServiceID{Segment: s.Segment, VIP: s.VIP, Protocol: s.Protocol, Port: s.Port}
		for _, b := range s.Backends {
			if !b.Unwell {
				want[model.Target{Service: id, Backend: netip.AddrPortFrom(b.Address, b.Port)}] = true
			}
		}
	}
	if got := d.Inherited(); !maps.Equal(got, want) {
		t.Errorf("%s, the backends that are left well are %v, want %v", when, got, want)
	}
}
