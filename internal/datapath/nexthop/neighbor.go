package nexthop

import (
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// Neighbor is a host on a link.
type Neighbor struct {
	Ifindex int
	Address netip.Addr
}

// usable are the neighbor states in which the kernel itself would send.
const usable = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE |
	netlink.NUD_PERMANENT | netlink.NUD_NOARP

// macOf returns the MAC address if the kernel has it, and asks the kernel once to
// find it and keep it fresh (NTF_EXT_MANAGED, Linux 5.16).
func (r *Resolver) macOf(n Neighbor) model.MAC {
	if r.macs == nil {
		r.readNeighbors()
	}
	if !r.managed[n] {
		r.managed[n] = true
		r.solicit(n)
	}
	return r.macs[n]
}

// solicit makes the kernel look for a neighbor now, and keep it.
func (r *Resolver) solicit(n Neighbor) {
	err := r.netlink.NeighSet(&netlink.Neigh{LinkIndex: n.Ifindex, Family: familyOf(n.Address), IP: n.Address.AsSlice(),
		State: netlink.NUD_NONE, FlagsExt: netlink.NTF_EXT_MANAGED})
	if err != nil {
		r.log.Warn("solicit neighbor", "address", n.Address, "interface", n.Ifindex, "error", err)
	}
}

// secondAnswer is how long a neighbor that has not answered the kernel is asked again before it
// counts as lost. The kernel asks three times, a second apart, and gives up a second after that. It
// gives up also on a neighbor that was away until just now and has had connections since.
const secondAnswer = 300 * time.Millisecond

// doubt keeps the address of a neighbor that the kernel has just given up, and asks again. It
// reports whether there is doubt: the neighbor was there before.
func (r *Resolver) doubt(n Neighbor) bool {
	if r.macs[n].IsZero() {
		return false
	}
	if r.doubts[n] == nil {
		r.doubts[n] = time.AfterFunc(secondAnswer, func() { r.lose(n) })
		r.solicit(n)
	}
	return true
}

// believe ends the doubts about a neighbor.
func (r *Resolver) believe(n Neighbor) {
	if timer := r.doubts[n]; timer != nil {
		timer.Stop()
		delete(r.doubts, n)
	}
}

// lose counts a neighbor as lost that has not answered again. On a busy host its time may be over
// before its answer was read, so the kernel is asked.
func (r *Resolver) lose(n Neighbor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.doubts[n] == nil {
		return // it has answered just now
	}
	delete(r.doubts, n)
	if entry := kernelNeighbor(n); entry != nil && entry.State&usable != 0 {
		if r.learn(unix.RTM_NEWNEIGH, entry) {
			r.notify()
		}
		return
	}
	delete(r.macs, n)
	r.notify()
}

// kernelNeighbor returns the kernel's entry of one neighbor, or nil. It does not read the whole
// table, which may be long.
func kernelNeighbor(n Neighbor) *netlink.Neigh {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	request.AddData(&netlink.Ndmsg{Family: uint8(familyOf(n.Address)), Index: uint32(n.Ifindex)})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, n.Address.AsSlice()))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if err != nil || len(messages) == 0 {
		return nil // there is no such entry any more
	}
	entry, err := netlink.NeighDeserialize(messages[0])
	if err != nil {
		return nil
	}
	return entry
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// readNeighbors reads the kernel's whole table once; events keep it up to date.
func (r *Resolver) readNeighbors() {
	r.macs, r.managed = map[Neighbor]model.MAC{}, map[Neighbor]bool{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := r.netlink.NeighList(0, family)
		if err != nil {
			r.log.Warn("read neighbors", "error", err)
		}
		for i := range list {
			r.learn(unix.RTM_NEWNEIGH, &list[i])
		}
	}
}

// learn takes in the kernel's report of one neighbor, and says whether packets leave differently
// now, or whether the kernel no longer keeps the neighbor: its garbage collection takes even
// neighbors that it was asked to keep, while they do not answer. A neighbor that is only confirmed
// changes nothing.
func (r *Resolver) learn(event uint16, entry *netlink.Neigh) bool {
	address, ok := netip.AddrFromSlice(entry.IP)
	if !ok || r.macs == nil {
		return false
	}
	n := Neighbor{entry.LinkIndex, address.Unmap()}
	var mac model.MAC
	if event == unix.RTM_NEWNEIGH && entry.State&usable != 0 {
		copy(mac[:], entry.HardwareAddr)
	}
	// A permanent neighbor need not be kept; a removed one must be asked for again.
	fixed := entry.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0
	managed := event == unix.RTM_NEWNEIGH && (fixed || entry.FlagsExt&netlink.NTF_EXT_MANAGED != 0)
	if givenUp := event == unix.RTM_NEWNEIGH && entry.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) != 0; givenUp && managed && r.doubt(n) {
		return false
	}
	r.believe(n)
	news := r.macs[n] != mac || r.managed[n] && !managed
	// Keep only neighbors with an address: any host on a link can make neighbors come and go.
	if r.macs[n] = mac; mac.IsZero() {
		delete(r.macs, n)
	}
	if r.managed[n] = managed; !managed {
		delete(r.managed, n)
	}
	return news
}
