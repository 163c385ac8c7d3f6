package node

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
)

// overlay is where full NAT sends from if pods' nodes answer by an overlay: the first addresses
// that its interfaces have.
type overlay struct{ V4, V6 netip.Addr }

// read looks at the interfaces of an overlay. Former addresses stay, because open connections have
// them. Without a current address there is no way back.
func (o *overlay) read(interfaces []string) error {
	var now overlay
	for _, name := range interfaces {
		link, err := netlink.LinkByName(name)
		if err != nil {
			continue // each family may have its own, and each is there when the network plugin has made it
		}
		addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("read the addresses of %s: %w", name, err)
		}
		for _, one := range addresses {
			a, _ := netip.AddrFromSlice(one.IP)
			now.add(a.Unmap())
		}
	}
	if now == (overlay{}) {
		return fmt.Errorf("no interface of spec.replyInterfaces has an address: %s", strings.Join(interfaces, ", "))
	}
	now.add(o.V4)
	now.add(o.V6)
	*o = now
	return nil
}

// add adds an address of a family that has none yet.
func (o *overlay) add(a netip.Addr) {
	switch {
	case !a.IsGlobalUnicast():
	case a.Is4() && !o.V4.IsValid():
		o.V4 = a
	case a.Is6() && !o.V6.IsValid():
		o.V6 = a
	}
}

// sources are the addresses of full NAT: the overlay's, and the node's in a family that it does
// not have.
func (o overlay) sources(f *facts) (list []netip.Addr) {
	for _, pair := range [][2]netip.Addr{{o.V4, f.V4}, {o.V6, f.V6}} {
		switch {
		case pair[0].IsValid():
			list = append(list, pair[0])
		case pair[1].IsValid():
			list = append(list, pair[1])
		}
	}
	return list
}
