package datapath

import (
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// askedIn is the kernel's list of the backends that may answer.
func askedIn(t *testing.T, d *Datapath) map[abi.AskBackend]uint32 {
	t.Helper()
	all := map[abi.AskBackend]uint32{}
	must(t, readAsked(d.kernel, all))
	return all
}

// Backends of a service that asks may answer for each other, from any port, also when the
// next process goes on; when it asks no more nothing of that is left.
func TestSetAsks(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	const asks, ranges = uint32(abi.SettingsFlagSETTINGS_ASKS), uint32(abi.SettingsFlagSETTINGS_RANGES)
	table := func(asks bool) model.Table {
		t := fullNATTable(model.PortRange{First: 1024, Last: 2047}, "192.0.2.5")
		for i := range t.Services[0].Backends {
			t.Services[0].Backends[i].Asks = asks
		}
		return t
	}
	d := openTest(t, model.Limits{})
	check := func(when string, want bool) {
		t.Helper()
		all := askedIn(t, d)
		if want != (len(all) > 0) || want && len(all) != 2 {
			t.Errorf("%s: %v may answer", when, all)
		}
		for key, index := range all {
			entry := d.entries.Entries[index]
			if entry.Address != key.Address || entry.Service != key.Service || entry.Flags&uint8(abi.BackendFlagBACKEND_ASKS) == 0 {
				t.Errorf("%s: for %v stands %+v", when, key, entry)
			}
		}
		if flags := d.written.Flags & (asks | ranges); want && flags != asks|ranges || !want && flags != 0 {
			t.Errorf("%s: settings have flags %#x", when, d.written.Flags)
		}
	}
	must(t, d.Set(table(false)))
	check("before", false)
	must(t, d.Set(table(true)))
	check("asks", true)
	must(t, d.Close())
	d = openTest(t, model.Limits{})
	must(t, d.Set(table(true)))
	check("the next process", true)
	must(t, d.Set(table(false)))
	check("asks no more", false)
	must(t, d.Set(table(true)))
	must(t, d.Set(tableOf(1, 2, 0)))
	check("another mode", false)
}
