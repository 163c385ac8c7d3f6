package datapath

import (
	"reflect"
	"testing"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// TestLoweredMTUIsTold: as long as an interface has a smaller MTU than before, and also if it had
// been raised in between. One that is what it was at first is none.
func TestLoweredMTUIsTold(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 1, 0)))
	told := func(what string, want ...model.LoweredMTU) {
		t.Helper()
		eventually(t, what, func() bool { return reflect.DeepEqual(d.Lowered(), want) })
	}
	told("at first nothing has become smaller")
	set := func(mtu int) { must(t, netlink.LinkSetMTU(wire(t), mtu)) }
	set(1400)
	told("it is told that 1400 is less than 1500", model.LoweredMTU{Interface: "wire0", Now: 1400, Before: 1500})
	set(1600)
	told("it is told no more after the MTU is raised")
	eventually(t, "the raised MTU is followed", func() bool { return statusOf(t, d).Interfaces[0].MTU == 1600 })
	_ = d.Lowered()
	set(1550)
	told("it is told that 1550 is less than 1600", model.LoweredMTU{Interface: "wire0", Now: 1550, Before: 1600})
	set(1500)
	told("it is over when the MTU is what it was at first")
	set(1400)
	told("what was tried in between is forgotten", model.LoweredMTU{Interface: "wire0", Now: 1400, Before: 1500})
}
