package bypass

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"weir.io/weir/lab/netlab"
)

// The properties of a limited cable: its queue has room for all frames that are sent in a closed
// loop, and up to a hundredth of a second without sending may be caught up on, because the kernel
// that sends is not always there in time.
const (
	catchUp = 100 // parts of a second
	waiting = 8192
)

// limit lets both ends of a cable send at most that many bits per second. Packets that an XDP
// program sends back are not limited: except for headers, a director sends no more than it is sent.
func limit(link *netlab.Link, rate uint64) error {
	for _, port := range []*netlab.Port{link.A, link.B} {
		if err := port.Host.Do(func() error { return limitPort(port.Index, rate) }); err != nil {
			return fmt.Errorf("limit the rate of a port of %s: %w", port.Host.Name, err)
		}
	}
	return nil
}

func limitPort(index int, rate uint64) error {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return err
	}
	// The queue of a class is as long as the port's.
	if err := netlink.LinkSetTxQLen(link, waiting); err != nil {
		return err
	}
	root, all := netlink.MakeHandle(1, 0), netlink.MakeHandle(1, 1)
	htb := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: root, Parent: netlink.HANDLE_ROOT})
	htb.Defcls = 1
	if err := netlink.QdiscAdd(htb); err != nil {
		return err
	}
	burst := uint32(rate / 8 / catchUp)
	return netlink.ClassAdd(netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: index, Handle: all, Parent: root},
		netlink.HtbClassAttrs{Rate: rate, Ceil: rate, Buffer: burst, Cbuffer: burst}))
}
