package device

import (
	"os"

	"github.com/vishvananda/netlink"
)

// ByName returns an interface; nil: it is not there.
func ByName(name string) netlink.Link {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil
	}
	return link
}

// NameOf returns the name of an interface; empty: it is not there. It asks the kernel once for each
// interface, and keeps the names in known.
func NameOf(index uint32, known map[uint32]string) string {
	if index == 0 {
		return ""
	}
	name, is := known[index]
	if !is {
		if link, err := netlink.LinkByIndex(int(index)); err == nil {
			name = link.Attrs().Name
		}
		known[index] = name
	}
	return name
}

// SetQuietlyUp sets a link up without an address of its own, so that it does not look for routers.
// Where /proc cannot be written it does look for them, but no host hears it.
func SetQuietlyUp(name string) (netlink.Link, error) {
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/addr_gen_mode", []byte("1"), 0)
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	return link, netlink.LinkSetUp(link)
}
