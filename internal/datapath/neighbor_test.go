package datapath

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// TestL2DSRThroughNoRouter: a packet to the VIP that is given to a router comes
// back. A tunnel ends at the backend, wherever that is.
func TestL2DSRThroughNoRouter(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	router := netip.MustParseAddr("10.0.0.254")
	addNeighbor(t, router)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: wire(t).Attrs().Index, Gw: router.AsSlice(),
		Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}}))
	d := openTest(t, model.Limits{})
	table := tableOf(1, 3, 0)
	for i := range table.Services[0].Backends {
		table.Services[0].Backends[i].Address = netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
	}
	table.Services[0].Backends[1].Mode = model.IPIP
	table.Services[0].Backends[2].MAC = model.MAC{2, 0, 0, 0, 0, 9}
	must(t, d.Set(table))
	for i, want := range []model.BackendState{model.Down, model.Active, model.Active} {
		if b := statusOf(t, d).Services[0].Backends[i]; b.State != want {
			t.Errorf("backend %d (%s) behind a router is %s, want %s", i, b.Mode, b.State, want)
		}
	}
}

// TestLostNeighborIsAskedForAgain: the kernel's garbage collection takes also a
// neighbor that it was asked to keep, while it does not answer.
func TestLostNeighborIsAskedForAgain(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 1, 0)))
	kept := func() bool {
		list, err := netlink.NeighList(wire(t).Attrs().Index, netlink.FAMILY_V4)
		must(t, err)
		return slices.ContainsFunc(list, func(n netlink.Neigh) bool {
			return n.IP.String() == "10.0.0.11" && n.FlagsExt&netlink.NTF_EXT_MANAGED != 0
		})
	}
	eventually(t, "the kernel keeps the neighbor", kept)
	must(t, netlink.NeighDel(&netlink.Neigh{LinkIndex: wire(t).Attrs().Index, IP: net.IPv4(10, 0, 0, 11)}))
	eventually(t, "the kernel keeps the neighbor again", kept)
}

// TestNeighborAnswersTheSecondTime: the kernel gives up a neighbor a second after it asked
// for the last time, also one that has come back meanwhile. It is asked again before it
// counts as lost; and is lost if it does not answer then either.
func TestNeighborAnswersTheSecondTime(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	// The kernel looks after its neighbors every second, and asks once.
	for name, value := range map[string]string{"base_reachable_time_ms": "500", "delay_first_probe_time": "1", "interval_probe_time_ms": "1000", "ucast_solicit": "1"} {
		must(t, os.WriteFile("/proc/sys/net/ipv4/neigh/wire0/"+name, []byte(value), 0))
	}
	far := farEnd(t)
	end, err := far.LinkByName("wire1")
	must(t, err)
	address, err := netlink.ParseAddr("10.0.0.11/24")
	must(t, err)
	there := func() { must(t, far.AddrAdd(end, address)) }
	away := func() { must(t, far.AddrDel(end, address)) }
	there()
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 1, 0)))
	state := func() model.BackendState { return statusOf(t, d).Services[0].Backends[0].State }
	seen := func(states int) bool {
		list, err := netlink.NeighList(wire(t).Attrs().Index, netlink.FAMILY_V4)
		must(t, err)
		return slices.ContainsFunc(list, func(n netlink.Neigh) bool { return n.IP.String() == "10.0.0.11" && n.State&states != 0 })
	}
	eventually(t, "the neighbor is there", func() bool { return state() == model.Active })
	for range 2 {
		eventually(t, "the neighbor has answered", func() bool { return seen(netlink.NUD_REACHABLE) })
		away()
		eventually(t, "the kernel has asked", func() bool { return seen(netlink.NUD_PROBE) })
		there()
		eventually(t, "the kernel has given up, or found it again", func() bool {
			if state() != model.Active {
				t.Fatal("a neighbor that answers is down")
			}
			return seen(netlink.NUD_FAILED | netlink.NUD_INCOMPLETE | netlink.NUD_REACHABLE)
		})
		eventually(t, "the neighbor has answered", func() bool {
			if state() != model.Active {
				t.Fatal("a neighbor that answers is down")
			}
			return seen(netlink.NUD_REACHABLE)
		})
	}
	away()
	eventually(t, "the neighbor is lost", func() bool { return state() == model.Down })
	there()
	eventually(t, "the neighbor is back", func() bool { return state() == model.Active })
}

// farEnd moves the wire's other end to a namespace of its own, and returns what makes changes
// there: at once, as neighbors are given up in their own time.
func farEnd(t *testing.T) *netlink.Handle {
	t.Helper()
	end, err := netlink.LinkByName("wire1")
	must(t, err)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	must(t, err)
	defer own.Close()
	ns, err := netns.New() // without a process, which a guest has no program for
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	must(t, netns.Set(own))
	must(t, netlink.LinkSetNsFd(end, int(ns)))
	far, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	must(t, err)
	t.Cleanup(far.Close)
	end, err = far.LinkByName("wire1")
	must(t, err)
	must(t, far.LinkSetUp(end))
	return far
}
