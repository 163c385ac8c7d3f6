package steering

import (
	"github.com/vishvananda/netlink"
)

// ByName is an interface of this host, with the queues that are for rules; false: there is none of this name.
func ByName(name string, queues []uint32) (Link, bool) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return Link{}, false
	}
	return linkOf(l, queues), true
}

// ByIndex is an interface of this host, by its index; false: it has gone.
func ByIndex(index int) (Link, bool) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return Link{}, false
	}
	return linkOf(l, nil), true
}

func linkOf(l netlink.Link, queues []uint32) Link {
	name := l.Attrs().Name
	return Link{Name: name, Index: l.Attrs().Index, NIC: nicOf(name), Queues: queues}
}
