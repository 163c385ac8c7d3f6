package datapath

import (
	"testing"

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
	_, err := first.place(&stale)
	must(t, err)
	must(t, first.Close())
	second := openTest(t, model.Limits{})
	table := tableOf(2, 2, 0)
	table.Services = table.Services[1:]
	must(t, second.Set(table))
	for _, b := range second.services[keyOf(&table.Services[0])].order {
		if vip := addressOf(second.entries.entries[b.index].Vip, false); vip != table.Services[0].VIP {
			t.Errorf("backend %s has the VIP %s, want %s", b.desired.Name, vip, table.Services[0].VIP)
		}
	}
	if n := entriesInUse(second); n != 2 {
		t.Errorf("%d backend entries are in use, want 2", n)
	}
}
