package doctor

import (
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
)

// Bits of ETHTOOL_GFLAGS (linux/ethtool.h).
const (
	flagRxVLAN = 1 << 8
	flagLRO    = 1 << 15
)

// lro checks for a driver's own coalescing, which destroys what is forwarded.
func (x *examination) lro(link netlink.Link) {
	name := link.Attrs().Name
	flags, err := device.Ethtool(name, unix.ETHTOOL_GFLAGS)
	if err == nil && flags&flagLRO != 0 {
		x.fail("lro "+name, "ethtool -K "+name+" lro off", "is on: drivers refuse XDP with it")
	}
}

// rxVLAN checks that XDP sees the tags that tell segments apart.
func (x *examination) rxVLAN(link netlink.Link) {
	name := link.Attrs().Name
	flags, err := device.Ethtool(name, unix.ETHTOOL_GFLAGS)
	switch {
	case err != nil:
		x.warn("rxvlan "+name, "", "cannot be read: %v", err)
	case flags&flagRxVLAN != 0:
		x.fail("rxvlan "+name, "ethtool -K "+name+" rxvlan off",
			"is on: the card takes VLAN tags off, and XDP cannot tell segments apart")
	default:
		x.ok("rxvlan "+name, "is off: XDP sees VLAN tags")
	}
}

// checksum checks a veth's other end, whose unfinished checksums stay so once XDP has forwarded the
// packet.
func (x *examination) checksum(link netlink.Link) {
	if link.Type() != "veth" {
		return
	}
	name := link.Attrs().Name
	check := "checksum " + name
	peer := x.links[link.Attrs().ParentIndex]
	if peer == nil || link.Attrs().NetNsID >= 0 {
		x.warn(check, "ethtool -K PEER tx off, at its other end", "is a veth whose other end is in another namespace: it must not leave checksums to offload")
		return
	}
	other := peer.Attrs().Name
	on, err := device.Ethtool(other, unix.ETHTOOL_GTXCSUM)
	switch {
	case err != nil:
		x.warn(check, "", "offload of %s cannot be read: %v", other, err)
	case on != 0:
		x.fail(check, "ethtool -K "+other+" tx off", "its other end, %s, leaves checksums to offload: forwarded packets have wrong ones", other)
	default:
		x.ok(check, "its other end, %s, finishes checksums", other)
	}
}
