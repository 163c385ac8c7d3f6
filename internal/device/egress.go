package device

import (
	"slices"

	"github.com/vishvananda/netlink"
)

// Egress says by which interfaces what a director sends leaves by XDP, and by which the kernel has
// to send it. It asks the kernel once about each, until it is told to forget.
type Egress struct {
	generic  bool
	inDriver map[string]bool
	sends    map[int]Sending
}

// NewEgress is of a director whose programs run where their drivers let them, or in none (generic).
func NewEgress(generic bool) *Egress {
	e := &Egress{generic: generic}
	e.Forget()
	return e
}

// Forget has the kernel asked again: an interface has changed.
func (e *Egress) Forget() { e.inDriver, e.sends = map[string]bool{}, map[int]Sending{} }

// ByKernel says whether the kernel has to send by an interface, because XDP does not or may not.
// The director's own are interfaces; by those of them with a program in the driver packets leave as
// they came. A VLAN's packets leave by the interface that it is on: that is the one to ask about.
func (e *Egress) ByKernel(by netlink.Link, interfaces []string) bool {
	if by.Attrs().EncapType == "ether" && !e.InDriver(interfaces...) {
		return false // what is generic sends into all that have Ethernet
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
