package datapath

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// otherFamily is a link, and the family other than that of a route through it.
type otherFamily struct {
	ifindex int
	six     bool
}

// addressFor returns this host's address of a family on the way to an address, which may be of the
// other family: a tunnel of either family carries both. Invalid: the kernel is to choose.
func (r *resolver) addressFor(to netip.Addr, six bool) netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	way := r.cached(to)
	if to.Is6() == six {
		return way.hop.address
	}
	key := otherFamily{way.via.ifindex, six}
	own, known := r.others[key]
	if !known {
		own = r.addressOn(way.via.ifindex, six)
		r.others[key] = own
	}
	return own
}

// addressOn returns the first address on a link to which hosts beyond the link can reply.
func (r *resolver) addressOn(ifindex int, six bool) netip.Addr {
	family := netlink.FAMILY_V4
	if six {
		family = netlink.FAMILY_V6
	}
	link := r.link(ifindex)
	if link == nil {
		return netip.Addr{}
	}
	list, err := r.netlink.AddrList(link, family)
	if err != nil {
		r.log.Warn("read addresses", "interface", link.Attrs().Name, "error", err)
	}
	const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DEPRECATED | unix.IFA_F_DADFAILED
	for _, a := range list {
		own, ok := netip.AddrFromSlice(a.IP)
		if ok && a.Scope == unix.RT_SCOPE_UNIVERSE && a.Flags&unusable == 0 {
			return own.Unmap()
		}
	}
	return netip.Addr{}
}
