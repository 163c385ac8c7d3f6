package datapath

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// neighbour is a host on a link.
type neighbour struct {
	ifindex int
	address netip.Addr
}

// usable are the neighbour states in which the kernel itself would send.
const usable = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE |
	netlink.NUD_PERMANENT | netlink.NUD_NOARP

// macOf returns the MAC address if the kernel has it, and asks the kernel once to
// find it and keep it fresh (NTF_EXT_MANAGED, Linux 5.16).
func (r *resolver) macOf(n neighbour) model.MAC {
	if r.macs == nil {
		r.readNeighbours()
	}
	if !r.managed[n] {
		r.managed[n] = true
		err := r.netlink.NeighSet(&netlink.Neigh{LinkIndex: n.ifindex, Family: familyOf(n.address), IP: n.address.AsSlice(),
			State: netlink.NUD_NONE, FlagsExt: netlink.NTF_EXT_MANAGED})
		if err != nil {
			r.log.Warn("ask for neighbour", "address", n.address, "interface", n.ifindex, "error", err)
		}
	}
	return r.macs[n]
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// readNeighbours reads the kernel's whole table once; events keep it up to date.
func (r *resolver) readNeighbours() {
	r.macs, r.managed = map[neighbour]model.MAC{}, map[neighbour]bool{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := r.netlink.NeighList(0, family)
		if err != nil {
			r.log.Warn("read neighbours", "error", err)
		}
		for i := range list {
			r.learn(unix.RTM_NEWNEIGH, &list[i])
		}
	}
}

// learn takes in what the kernel says of one neighbour, and reports whether that
// changes how packets leave, or ends that the kernel keeps it: its garbage
// collection also takes those that it was asked to keep, while they do not answer.
// A neighbour that is only confirmed changes nothing.
func (r *resolver) learn(event uint16, entry *netlink.Neigh) bool {
	address, ok := netip.AddrFromSlice(entry.IP)
	if !ok || r.macs == nil {
		return false
	}
	n := neighbour{entry.LinkIndex, address.Unmap()}
	var mac model.MAC
	if event == unix.RTM_NEWNEIGH && entry.State&usable != 0 {
		copy(mac[:], entry.HardwareAddr)
	}
	// Permanent ones need nobody to keep them; a removed one must be asked for again.
	fixed := entry.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0
	managed := event == unix.RTM_NEWNEIGH && (fixed || entry.FlagsExt&netlink.NTF_EXT_MANAGED != 0)
	news := r.macs[n] != mac || r.managed[n] && !managed
	// Only what there is: anybody on a link can make neighbours come and go.
	if r.macs[n] = mac; mac.IsZero() {
		delete(r.macs, n)
	}
	if r.managed[n] = managed; !managed {
		delete(r.managed, n)
	}
	return news
}
