package datapath

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// TestOwnMACs: the program knows the MAC addresses of all interfaces, and of all that an interface
// takes frames for, and learns of others as they come and go.
func TestOwnMACs(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbor(t, netip.MustParseAddr("10.0.0.11"))
	d := openOptions(t, Options{recheck: 20 * time.Millisecond})
	must(t, d.Set(tableOf(1, 1, 0)))
	want := map[uint64]uint8{}
	add := func(mac net.HardwareAddr) { want[nexthop.MACWord(model.MAC(mac))] = 1 }
	for _, name := range []string{"wire0", "wire1"} {
		link, err := netlink.LinkByName(name)
		must(t, err)
		add(link.Attrs().HardwareAddr)
	}
	knows := func(when string) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s it knows %x", when, want), func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			have, err := contents.Read[uint64, uint8](d.kernel.OwnMacs)
			must(t, err)
			return maps.Equal(have, want)
		})
		if settingsOf(t, d).Flags&uint32(abi.SettingsFlagSETTINGS_OWN_MACS) == 0 {
			t.Fatalf("%s the program does not compare with them", when)
		}
	}
	knows("at first")

	// As a macvlan in a container does: the kernel does not report it.
	virtual := net.HardwareAddr{0, 0, 0x5e, 0, 1, 0x33}
	entry := &netlink.Neigh{LinkIndex: wire(t).Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT, HardwareAddr: virtual}
	must(t, netlink.NeighAppend(entry))
	add(virtual)
	knows("with an address that the interface takes frames for")
	must(t, netlink.NeighDel(entry))
	delete(want, nexthop.MACWord(model.MAC(virtual)))
	knows("without it")

	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "more0", HardwareAddr: virtual}, PeerName: "more1"}))
	more, err := netlink.LinkByName("more1")
	must(t, err)
	add(virtual)
	add(more.Attrs().HardwareAddr)
	knows("with another interface")
	must(t, netlink.LinkDel(more))
	delete(want, nexthop.MACWord(model.MAC(virtual)))
	delete(want, nexthop.MACWord(model.MAC(more.Attrs().HardwareAddr)))
	knows("without it")
}

// TestNobodyComparesMACs: a director without l2dsr does not compare with the host's addresses.
func TestNobodyComparesMACs(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbor(t, netip.MustParseAddr("10.0.0.11"))
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 1, 0)))
	compares := func() bool {
		return settingsOf(t, d).Flags&uint32(abi.SettingsFlagSETTINGS_OWN_MACS) != 0
	}
	if !compares() {
		t.Error("l2dsr does not compare")
	}
	must(t, d.Set(tunnelTable()))
	if compares() {
		t.Error("ipip compares")
	}
}

// TestTooManyMACs: what cannot be compared is said, and no packet is lost for it.
func TestTooManyMACs(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbor(t, netip.MustParseAddr("10.0.0.11"))
	d := openOptions(t, Options{recheck: 20 * time.Millisecond})
	must(t, d.Set(tableOf(1, 1, 0)))
	parts := d.Parts(nil)
	if found := differences(t, parts, "interfaces"); len(found) > 0 {
		t.Fatalf("it says %+v", found)
	}
	taken := func(change func(*netlink.Neigh) error) {
		for i := range int(d.kernel.OwnMacs.MaxEntries()) / 2 {
			mac := net.HardwareAddr{2, 0, 0, 1, byte(i >> 8), byte(i)}
			must(t, change(&netlink.Neigh{LinkIndex: wire(t).Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT, HardwareAddr: mac}))
		}
	}
	taken(netlink.NeighAppend)
	unknown := func(want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("it says that addresses are not known: %t", want), func() bool {
			found := differences(t, parts, "interfaces")
			return len(found) == 1 && found[0].What == upkeep.MACs && want || len(found) == 0 && !want
		})
		if compares := settingsOf(t, d).Flags&uint32(abi.SettingsFlagSETTINGS_OWN_MACS) != 0; compares == want {
			t.Errorf("the program compares: %t", compares)
		}
	}
	unknown(true)
	taken(netlink.NeighDel)
	unknown(false)
}
