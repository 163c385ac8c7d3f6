package datapath

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// TestMovedBackendIsAskedFor: a host that takes over a backend's address and does not say so is found
// as soon as a probe has no answer, though the kernel would not doubt the neighbor for an hour.
func TestMovedBackendIsAskedFor(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		must(t, os.WriteFile("/proc/sys/net/"+family+"/neigh/wire0/base_reachable_time_ms", []byte("3600000"), 0))
	}
	far := farEnd(t)
	end, err := far.LinkByName("wire1")
	must(t, err)
	backends := []netip.Addr{netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("2001:db8::11")}
	for _, prefix := range []string{"10.0.0.11/24", "2001:db8::11/64"} {
		address, err := netlink.ParseAddr(prefix)
		must(t, err)
		address.Flags = unix.IFA_F_NODAD
		must(t, far.AddrAdd(end, address))
	}
	d := openTest(t, model.Limits{})
	checks := d.Checks()
	t.Cleanup(func() { checks.Close() })
	table := tableOf(2, 1, 0)
	for i, b := range backends {
		table.Services[i].Backends[0].Address = b
		if b.Is6() {
			table.Services[i].VIP = netip.MustParseAddr("2001:db8:1::1")
		}
	}
	must(t, d.Set(table))
	mac := model.MAC(end.Attrs().HardwareAddr)
	for move := range byte(2) {
		for i := range backends {
			eventually(t, "the backend is where it was", func() bool { return statusOf(t, d).Services[i].Backends[0].NextHop == mac })
		}
		mac = model.MAC{2, 0, 0, 0, 9, move}
		must(t, far.LinkSetHardwareAddr(end, net.HardwareAddr(mac[:])))
		for i, b := range backends {
			check := &model.Check{To: netip.AddrPortFrom(b, 80)}
			eventually(t, "the backend is where it has moved to", func() bool {
				checks.Failed(check)
				return statusOf(t, d).Services[i].Backends[0].NextHop == mac
			})
		}
	}
}
