package netlab

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Class is a part of what a port sends: its packets wait in a queue of their own, and leave at its
// rate.
type Class struct {
	Rate  uint64 // bits per second
	Burst uint32 // bytes that may leave at once, because the kernel that sends is not always in time
}

// Unlimited is more than a cable of a lab carries, in bits per second.
const Unlimited = 10_000_000_000

// ClassHandle is the number of a port's class, for filters: the first one is 1.
func ClassHandle(class int) uint32 { return netlink.MakeHandle(1, uint16(class)) }

// Shape divides what the port sends into classes (HTB). The first one has all packets that neither a
// filter nor netfilter puts into another. queue is how many packets wait in a class at most; 0: the
// kernel's default.
func (p *Port) Shape(queue int, classes ...Class) error {
	if err := p.shape(queue, classes); err != nil {
		return fmt.Errorf("limit the rate of %s of %s: %w", p.Name, p.Host.Name, err)
	}
	return nil
}

func (p *Port) shape(queue int, classes []Class) error {
	nl, root := p.Host.nl, ClassHandle(0)
	if queue > 0 {
		link, err := nl.LinkByIndex(p.Index)
		if err != nil {
			return err
		}
		if err := nl.LinkSetTxQLen(link, queue); err != nil { // that of a class is as long as the port's
			return err
		}
	}
	htb := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: p.Index, Handle: root, Parent: netlink.HANDLE_ROOT})
	htb.Defcls = 1
	if err := nl.QdiscAdd(htb); err != nil {
		return fmt.Errorf("add HTB: %w", err)
	}
	for i, c := range classes {
		at := netlink.ClassAttrs{LinkIndex: p.Index, Handle: ClassHandle(i + 1), Parent: root}
		if err := nl.ClassAdd(netlink.NewHtbClass(at, netlink.HtbClassAttrs{Rate: c.Rate, Ceil: c.Rate, Buffer: c.Burst, Cbuffer: c.Burst})); err != nil {
			return fmt.Errorf("add class %d: %w", i+1, err)
		}
	}
	return nil
}

// Sent returns how many bytes have left by one of the classes, with Ethernet's headers.
func (p *Port) Sent(class int) (uint64, error) {
	link, err := p.Host.nl.LinkByIndex(p.Index)
	if err != nil {
		return 0, fmt.Errorf("counters of %s of %s: %w", p.Name, p.Host.Name, err)
	}
	all, err := p.Host.nl.ClassList(link, ClassHandle(0))
	if err != nil {
		return 0, fmt.Errorf("counters of %s of %s: %w", p.Name, p.Host.Name, err)
	}
	for _, c := range all {
		if a := c.Attrs(); a.Handle == ClassHandle(class) && a.Statistics != nil {
			return a.Statistics.Basic.Bytes, nil
		}
	}
	return 0, fmt.Errorf("counters of %s of %s: there is no class %d", p.Name, p.Host.Name, class)
}
