package datapath

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// attachUndo makes the program that translates local backends' replies run on exactly these
// interfaces.
func (d *Datapath) attachUndo(links []netlink.Link) error {
	var names []string
	for _, link := range links {
		if err := d.attachUndoTo(link); err != nil {
			return err
		}
		names = append(names, link.Attrs().Name)
	}
	return d.detachTC(undoHook, names)
}

func (d *Datapath) attachUndoTo(link netlink.Link) error {
	name := link.Attrs().Name
	if err := d.attachTC(undoHook, name, link.Attrs().Index, d.kernel.undo); err != nil {
		return fmt.Errorf("attach to %s on its way out: %w", name, err)
	}
	return nil
}

// replyInterfaces are the interfaces by which full NAT's replies may come, besides the director's
// own: those that the table names, and those by which its backends are reached without a router, or
// by the kernel. A backend on this host, such as a pod, answers this host's own address by no other
// interface.
func (d *Datapath) replyInterfaces() []string {
	names := currentNames(d.table.ReplyInterfaces, d.findInterfaces(d.table.ReplyInterfaces))
	seen, known := map[int]bool{0: true}, map[uint32]string{}
	for _, own := range d.links {
		if own != nil {
			seen[own.Attrs().Index] = true
		}
	}
	for _, s := range d.services {
		for _, b := range s.order {
			if !b.desired.SNAT || b.desired.Mode != model.NAT || seen[b.answers] {
				continue
			}
			seen[b.answers] = true
			if name := interfaceName(uint32(b.answers), known); name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// attachReplies makes the program that takes full NAT's replies run on exactly the interfaces by
// which they may come. If again is set, it attaches also where the program is already. Interfaces
// that are missing get it when they come: an overlay may begin later than the director.
func (d *Datapath) attachReplies(replies, again bool) error {
	var interfaces []string
	if replies {
		interfaces = d.replyInterfaces()
	}
	gone := 0
	maps.DeleteFunc(d.takesReplies, func(name string, _ int) bool {
		if slices.Contains(interfaces, name) {
			return false
		}
		gone++
		return true
	})
	var errs []error
	for _, name := range interfaces {
		errs = append(errs, d.takeReplies(name, again))
	}
	if err := errors.Join(errs...); err != nil || !again && gone == 0 {
		return err
	}
	return d.detachTC(replyHook, interfaces)
}

// beforeReplies attaches before a ring leads to backends that may answer. Before the first switch
// of programs, this process's programs forward nothing.
func (d *Datapath) beforeReplies() error {
	if !d.kernel.inUse {
		return nil
	}
	return d.attachReplies(d.have.haveReplies() || usesSNAT(&d.table), false)
}

// takesNone says that replies cannot be taken from an interface: on GRE interfaces the kernel shows
// programs the outer header.
func takesNone(link netlink.Link) bool { return strings.Contains(link.Attrs().EncapType, "gre") }

// takeReplies attaches to an interface that has come, or to any if again is set.
func (d *Datapath) takeReplies(name string, again bool) error {
	was, said := d.takesReplies[name]
	iface, err := netlink.LinkByName(name)
	if err != nil {
		if !said || was != 0 {
			d.log.Warn("interface is not there; replies are taken from it when it is", "interface", name)
		}
		d.takesReplies[name] = 0
		return nil
	}
	index := iface.Attrs().Index
	if was == index && !again {
		return nil
	}
	program := d.kernel.takeReply
	switch {
	case takesNone(iface):
		if was != index {
			d.log.Warn("replies that come out of GRE cannot be taken", "interface", name)
		}
		d.takesReplies[name] = index
		return nil
	case iface.Attrs().EncapType != "ether":
		program = d.kernel.takeBareReply
	}
	if err := d.attachTC(replyHook, name, index, program); err != nil {
		if _, gone := netlink.LinkByIndex(index); gone != nil { // as happens to interfaces of pods
			d.takesReplies[name] = 0
			return nil
		}
		return fmt.Errorf("attach to %s for replies: %w", name, err)
	}
	d.takesReplies[name] = index
	if was != index {
		d.log.Info("takes replies of full NAT", "interface", name)
	}
	return nil
}
