package device

import (
	"slices"

	"github.com/vishvananda/netlink"
)

// Egress says by which interfaces XDP sends a director's packets, and by which the kernel has to.
// It asks the kernel about each interface once, until it is told to forget.
type Egress struct {
	generic  bool
	inDriver map[string]bool
	sends    map[int]Sending
}

// NewEgress is for a director whose programs run in the drivers that let them, or in none
// (generic).
func NewEgress(generic bool) *Egress {
	e := &Egress{generic: generic}
	e.Forget()
	return e
}

// Forget makes Egress ask the kernel again: an interface has changed.
func (e *Egress) Forget() { e.inDriver, e.sends = map[string]bool{}, map[int]Sending{} }

// ByKernel says whether the kernel has to send by an interface, because XDP does not or may not.
// Parameter interfaces has the director's own; packets leave by XDP through those with a program in
// the driver. A VLAN's packets leave by the interface that it is on: ask about that one.
func (e *Egress) ByKernel(by netlink.Link, interfaces []string) bool {
	if by.Attrs().EncapType == "ether" && !e.InDriver(interfaces...) {
		return false // generic XDP sends by every Ethernet interface
	}
	if name := by.Attrs().Name; slices.Contains(interfaces, name) && e.InDriver(name) {
		return false
	}
	return e.Sending(by) != Sends
}

// InDriver says whether a program runs in the driver of one of these interfaces, or would.
func (e *Egress) InDriver(interfaces ...string) bool {
	return slices.ContainsFunc(interfaces, e.runsInDriver)
}

func (e *Egress) runsInDriver(name string) bool {
	runs, known := e.inDriver[name]
	if !known {
		link, err := netlink.LinkByName(name)
		runs = !e.generic && err == nil && RunsInDriver(link)
		e.inDriver[name] = runs
	}
	return runs
}

// Sending is SendingOf.
func (e *Egress) Sending(by netlink.Link) Sending {
	sends, known := e.sends[by.Attrs().Index]
	if !known {
		sends = SendingOf(by)
		e.sends[by.Attrs().Index] = sends
	}
	return sends
}

// Untagged returns the interface by which a VLAN's packets leave, and the tag to give them, if a
// director's program can write it, which is a single 802.1Q tag, and send by the real interface.
// For all others it returns the interface itself and no tag: only the VLAN device writes another
// protocol's tag (802.1ad) or the outer one of two. Link finds an interface by its index, and
// returns nil where there is none.
func Untagged(by netlink.Link, link func(index int) netlink.Link) (netlink.Link, uint16) {
	vlan, ok := by.(*netlink.Vlan)
	if !ok || vlan.VlanProtocol != netlink.VLAN_PROTOCOL_8021Q {
		return by, 0
	}
	parent := link(vlan.ParentIndex)
	if parent == nil || parent.Type() == by.Type() {
		return by, 0
	}
	return parent, uint16(vlan.VlanId)
}
