package datapath

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/upkeep"
)

// By says which process made a change of the host that matches, or nothing: upkeep.Notices.By.
type By func(matches func(upkeep.Change) bool) string

// ofLink finds the process that changed an interface or its attached programs.
func (by By) ofLink(index int) string {
	if by == nil {
		return ""
	}
	return by(func(c upkeep.Change) bool { return c.Index == index })
}

// Groups are the groups of rtnetlink that report changes of the parts. No group reports that a
// program was taken off an interface through its link, nor changes of pins and of most sysctls.
var Groups = []uint{unix.RTNLGRP_LINK, unix.RTNLGRP_TC, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
	unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE}

// Parts are the parts of this host that the datapath owns, as docs/operate/upkeep.md lists them.
func (d *Datapath) Parts(by By) []upkeep.Part {
	return []upkeep.Part{
		d.kernel.sole.Part(),
		{Name: "interfaces", Look: d.whileItRuns(d.interfaceDifferences)},
		{Name: "pins", Look: d.whileItRuns(d.pinDifferences)}, // before everything that is pinned
		{Name: "tables", Look: d.contentDifferences},
		{Name: "xdp", Look: d.whileItRuns(func() ([]upkeep.Difference, error) { return d.xdpDifferences(by) })},
		{Name: "tc", Look: d.whileItRuns(func() ([]upkeep.Difference, error) { return d.tcDifferences(by) })},
		{Name: "sysctls", Look: d.whileItRuns(d.sysctlDifferences)},
		{Name: "onward", Look: d.whileItRuns(func() ([]upkeep.Difference, error) { return d.onwardDifferences(by) })},
	}
}

// whileItRuns compares with the table of the last Set that has succeeded: a datapath that has not
// begun, or has ended, owns nothing.
func (d *Datapath) whileItRuns(look func() ([]upkeep.Difference, error)) func() ([]upkeep.Difference, error) {
	return func() ([]upkeep.Difference, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.begun || d.entries.memory == nil || !d.kernel.inUse {
			return nil, nil
		}
		return look()
	}
}

// locked makes a repair hold the lock.
func (d *Datapath) locked(repair func() error) func() error {
	return func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.entries.memory == nil {
			return nil // closed meanwhile: it no longer owns anything
		}
		return repair()
	}
}

// interfaceDifferences are the interfaces that weir waits for: it neither makes interfaces nor sets
// them up.
func (d *Datapath) interfaceDifferences() (found []upkeep.Difference, err error) {
	for i, link := range d.findInterfaces(d.table.Interfaces) {
		name := d.table.Interfaces[i]
		if text := d.wrongWith(name, link); text != "" {
			found = append(found, upkeep.Difference{What: name, Found: text})
		}
	}
	return append(found, d.ownMACDifference()...), nil
}

// wrongWith says what is wrong with an interface of the table.
func (d *Datapath) wrongWith(name string, link netlink.Link) string {
	if link == nil {
		if kept := d.keptFor(); len(kept) > 0 {
			return "is not there: " + strings.Join(kept, ", ") + " stays attached until it is"
		}
		return "is not there"
	}
	attrs := link.Attrs()
	switch {
	case attrs.Flags&net.FlagUp == 0:
		return "is down"
	case attrs.OperState == netlink.OperDown || attrs.OperState == netlink.OperLowerLayerDown:
		return "has no carrier"
	}
	return ""
}

// Renamed are the interfaces that the table calls by an old name, with their present names.
func (d *Datapath) Renamed() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	renamed := map[string]string{}
	for i, link := range d.links {
		name := d.table.Interfaces[i]
		if link != nil && link.Attrs().Name != name && !slices.Contains(link.Attrs().AltNames, name) {
			renamed[name] = link.Attrs().Name
		}
	}
	return renamed
}

// keptFor are the interfaces that are no longer in the table, and keep the program until all
// interfaces of the table are there.
func (d *Datapath) keptFor() (kept []string) {
	for name := range d.attached {
		if !slices.Contains(d.table.Interfaces, name) {
			kept = append(kept, name)
		}
	}
	slices.Sort(kept)
	return kept
}

// xdpDifferences are the interfaces that are there and do not have the director's program.
func (d *Datapath) xdpDifferences(by By) (found []upkeep.Difference, err error) {
	if d.holds {
		return nil, nil
	}
	want, err := idOf(d.attaching())
	if err != nil {
		return nil, err
	}
	for i, link := range d.findInterfaces(d.table.Interfaces) {
		if link == nil {
			continue
		}
		name, a := d.table.Interfaces[i], d.attached[d.table.Interfaces[i]]
		difference := upkeep.Difference{What: link.Attrs().Name, By: by.ofLink(link.Attrs().Index)}
		switch {
		case a == nil || a.index != link.Attrs().Index || !a.holds():
			difference.Found = "has not the director's program"
			difference.Repair = d.inDirectory(func() error { return d.attachAgain(name) })
		case a.program() != want:
			difference.Found = fmt.Sprintf("has program %d instead of the director's", a.program())
			difference.Repair = d.locked(func() error { return a.link.Update(d.attaching()) })
		default:
			continue
		}
		found = append(found, difference)
	}
	return found, nil
}

// attachAgain attaches to an interface whose link is gone, or was detached.
func (d *Datapath) attachAgain(name string) error {
	link := d.findInterfaces([]string{name})[0]
	if link == nil {
		return nil // the datapath waits for it
	}
	if a := d.attached[name]; a != nil {
		a.close()
		delete(d.attached, name)
	}
	d.takeInterfaces(d.table.Interfaces)
	if _, err := d.attachTo(name, link); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	if !d.have.haveReplies() {
		return nil
	}
	return d.attachUndoTo(link)
}

// tcDifferences are the interfaces that lack the programs for replies.
func (d *Datapath) tcDifferences(by By) (found []upkeep.Difference, err error) {
	if d.holds || !d.have.haveReplies() {
		return nil, nil
	}
	for _, link := range d.findInterfaces(d.table.Interfaces) {
		if link != nil && !undoHook.isOn(d.kernel.pin, link.Attrs().Name, link) {
			found = append(found, upkeep.Difference{What: link.Attrs().Name + " egress", Found: "has not the program that translates replies",
				By: by.ofLink(link.Attrs().Index), Repair: d.inDirectory(func() error { return d.attachUndoTo(link) })})
		}
	}
	for name, index := range d.takesReplies {
		link := linkByName(name)
		if index == 0 || link == nil || link.Attrs().Index != index || takesNone(link) || replyHook.isOn(d.kernel.pin, name, link) {
			continue
		}
		found = append(found, upkeep.Difference{What: name + " ingress", Found: "has not the program that takes replies",
			By: by.ofLink(index), Repair: d.inDirectory(func() error { return d.takeReplies(name, true) })})
	}
	return found, nil
}

// onwardDifferences are the differences of the device by which the kernel sends, if one is needed.
func (d *Datapath) onwardDifferences(by By) ([]upkeep.Difference, error) {
	text, index := d.hops.onwardProblem()
	if text == "" && d.hops.onwardLost() {
		return []upkeep.Difference{{What: d.hops.onward.name, Found: "is not there", Repair: func() error { return nil }}}, nil
	}
	if text == "" {
		return nil, nil
	}
	return []upkeep.Difference{{What: d.hops.onward.name, Found: text, By: by.ofLink(index), Repair: d.hops.mendOnward}}, nil
}

// Part is the part of this host that leads health checks by the way of clients' packets.
func (c *Checks) Part(by By) upkeep.Part {
	return upkeep.Part{Name: "checks", Look: func() ([]upkeep.Difference, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.device == nil {
			return nil, nil
		}
		text, index := c.device.problem()
		if text == "" {
			return nil, nil
		}
		return []upkeep.Difference{{What: c.device.name, Found: text, By: by.ofLink(index), Repair: c.mend}}, nil
	}}
}

func (c *Checks) mend() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.device == nil {
		return nil // closed meanwhile
	}
	return c.device.mend(c.pin)
}
