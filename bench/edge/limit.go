package edge

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// The properties of a limited cable: its queue holds the frames of a tenth of a second, as before a
// switch's port, and up to a hundredth of a second without sending may be caught up on, because the
// kernel that sends is not always there in time.
const (
	queued   = 10 // parts of a second
	catchUp  = 100
	longest  = 1514 // bytes of a frame
	carrier  = 10_000_000_000
	priority = 1
)

// limit lets a port send at most that many bits per second of clients' packets. Traffic between
// routers and directors has a class of its own, as networks give it.
func limit(port *netlab.Port, rate uint64) error {
	root, clients, others := netlink.MakeHandle(1, 0), netlink.MakeHandle(1, 1), netlink.MakeHandle(1, 2)
	class := func(handle uint32, rate uint64) netlink.Class {
		burst := uint32(rate / 8 / catchUp)
		return netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: port.Index, Handle: handle, Parent: root},
			netlink.HtbClassAttrs{Rate: rate, Ceil: rate, Buffer: burst, Cbuffer: burst})
	}
	htb := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: port.Index, Handle: root, Parent: netlink.HANDLE_ROOT})
	htb.Defcls = 2
	toVIP := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: port.Index, Parent: root, Priority: priority, Protocol: unix.ETH_P_IP},
		ClassId:     clients,
		Sel: &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL, Nkeys: 1,
			Keys: []netlink.TcU32Key{{Mask: 0xffffffff, Val: binary.BigEndian.Uint32(vip.AsSlice()), Off: 16}}}, // IPv4's destination
	}
	err := port.Host.Do(func() error {
		link, err := netlink.LinkByIndex(port.Index)
		if err != nil {
			return err
		}
		// The queues of the classes are as long as the port's.
		if err := netlink.LinkSetTxQLen(link, int(rate/8/queued/longest)); err != nil {
			return err
		}
		if err := netlink.QdiscAdd(htb); err != nil {
			return err
		}
		if err := netlink.ClassAdd(class(clients, rate)); err != nil {
			return err
		}
		if err := netlink.ClassAdd(class(others, carrier)); err != nil {
			return err
		}
		return netlink.FilterAdd(toVIP)
	})
	if err != nil {
		return fmt.Errorf("limit the rate of a port of %s: %w", port.Host.Name, err)
	}
	return nil
}
