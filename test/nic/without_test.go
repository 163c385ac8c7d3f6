package nic

import (
	"fmt"
	"slices"
	"testing"

	"weir.io/weir/internal/device"
)

// Each driver without rules is named, with the reason, also where it says that there is room for rules.
func TestPCDriversWithoutRules(t *testing.T) {
	for model, driver := range map[string]string{"igb": "igb", "e1000e": "e1000e", "vmxnet3": "vmxnet3", "virtio-net-pci": "virtio_net"} {
		t.Run(driver, func(t *testing.T) {
			c := cardOf(t, model, driver, "")
			table, tableErr := device.RulesOf(c.name)
			if driver == "igb" {
				// The 82576 has none, its driver has room for 16.
				if tableErr != nil || table.Size != 16 || len(table.Locations) != 0 {
					t.Errorf("the flow table is %+v (%v)", table, tableErr)
				}
			} else {
				wantError(t, tableErr, device.ErrNoRules, c.name+" ("+driver+"): read the flow table: the driver has no flow table (ntuple filters) for this NIC")
			}
			_, err := device.InsertRule(c.name, device.Rule{Flow: tcp("192.0.2.1:1111", "203.0.113.10:80"), Queue: 1}, table.Chooses)
			wantError(t, err, device.ErrNoRules, c.name+" ("+driver+"): insert rule 0 for TCP from 192.0.2.1:1111 to 203.0.113.10:80 to queue 1: the driver has no flow table")
			wantError(t, device.CanSteer(c.name), device.ErrNoRules, c.name+" ("+driver+"): ", "the driver has no flow table (ntuple filters) for this NIC")
			wantError(t, device.SwitchRulesOn(c.name), device.ErrNoRules, c.name+" ("+driver+"): switch the flow table on: ")
		})
	}
}

// RSS uses no queue that it is kept off.
func TestPCKeepsRSSOff(t *testing.T) {
	c := cardOf(t, "igb", "igb", "rx_queue_%d_packets")
	table, err := device.Indirection(c.name)
	if err != nil || !slices.Contains(table, 0) || !slices.Contains(table, 1) {
		t.Fatalf("RSS uses %d (%v), want queues 0 and 1", table, err)
	}
	t.Cleanup(func() {
		if err := device.SetIndirection(c.name, table); err != nil {
			t.Error(err)
		}
	})
	const flows = 64
	ask := func() {
		for i := range flows {
			c.ask(1, tcp(fmt.Sprintf("192.0.2.%d:1111", i+1), "203.0.113.10:80"))
		}
	}
	before := c.arrived()
	ask()
	c.eventually("all frames have come", func() bool { c.want = c.arrived(); return c.want[0]+c.want[1] == before[0]+before[1]+flows })
	if c.want[0] == before[0] || c.want[1] == before[1] {
		t.Fatalf("by the queues have come %d frames, before %d: RSS spreads none", c.want, before)
	}
	t.Logf("RSS spreads %d flows: by the queues have come %d, before %d", flows, c.want, before)
	for keep := range 2 {
		other := uint32(1 - keep)
		if err := device.SetIndirection(c.name, table); err != nil {
			t.Fatal(err)
		}
		if err := device.KeepRSSOff(c.name, []uint32{other}); err != nil {
			t.Fatal(err)
		}
		c.want[keep] += flows
		ask()
		c.check(fmt.Sprintf("RSS is kept off queue %d", other))
	}
	wantError(t, device.KeepRSSOff(c.name, []uint32{0, 1}), nil, "no queue left")
}
