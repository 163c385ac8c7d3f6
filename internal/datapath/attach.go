package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// attachment is the director on one interface.
type attachment struct {
	link  link.Link
	index int
}

func (a *attachment) close() { a.link.Close() }

func (p *pins) linkPin(name string) string {
	return filepath.Join(p.pin, linkPrefix+device.PinName(name))
}

// interfaceOfPin is the interface whose link has that pin.
func interfaceOfPin(pin, prefix string) string {
	return device.PinnedInterface(filepath.Base(pin)[len(prefix):])
}

// findInterfaces looks all interfaces up before anything is changed for them. One
// that was there and is gone must not stand in the way of a change, which may well
// be because of that: it is nil, and attached to when it is back.
func (d *Datapath) findInterfaces(names []string) ([]netlink.Link, error) {
	links := make([]netlink.Link, len(names))
	for i, name := range names {
		iface, err := netlink.LinkByName(name)
		switch {
		case err == nil:
			links[i] = iface
		case d.attached[name] != nil:
			d.log.Warn("interface is gone; its packets come in again when it is back", "interface", name)
		default:
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
	}
	return links, nil
}

// attach makes the program run on exactly these interfaces, if packets need not be
// held. A link that is pinned already is given the program in one step: no packet sees
// none. After an error the program is where it was before.
func (d *Datapath) attach(interfaces []string, links []netlink.Link) error {
	var made []string
	for i, name := range interfaces {
		if links[i] == nil {
			continue
		}
		fresh, err := d.attachTo(name, links[i])
		if err != nil {
			return errors.Join(fmt.Errorf("attach to %s: %w", name, err), d.detachFrom(made))
		}
		if fresh {
			made = append(made, name)
		}
	}
	pins, err := filepath.Glob(d.kernel.linkPin("*"))
	if err != nil {
		return err
	}
	for _, pin := range pins {
		name := interfaceOfPin(pin, linkPrefix)
		if slices.Contains(interfaces, name) {
			continue
		}
		if err := d.detachFrom([]string{name}); err != nil {
			return err
		}
	}
	return nil
}

// Admit attaches the program to the interfaces of the last Set that it was held from, and
// to those of each Set after it.
func (d *Datapath) Admit() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holds = false
	if !d.begun {
		return nil
	}
	links, err := d.findInterfaces(d.table.Interfaces)
	if err != nil {
		return err
	}
	return d.switchPrograms(d.table.Interfaces, links, d.have.haveReplies())
}

func (d *Datapath) detachFrom(interfaces []string) error {
	for _, name := range interfaces {
		if a := d.attached[name]; a != nil {
			a.close()
			delete(d.attached, name)
		}
		if err := unpinLink(d.kernel.linkPin(name)); err != nil {
			return fmt.Errorf("detach from %s: %w", name, err)
		}
		d.log.Info("detached", "interface", name)
	}
	return nil
}

// reattach follows interfaces that were made anew under their names: the kernel
// let go of the old ones, and took the program from them.
func (d *Datapath) reattach() error {
	var errs []error
	for name, a := range d.attached {
		iface, err := netlink.LinkByName(name)
		if err != nil || iface.Attrs().Index == a.index {
			continue
		}
		_, err = d.attachTo(name, iface)
		if err == nil && d.have.haveReplies() {
			err = d.attachUndoTo(name, iface.Attrs().Index)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("attach to %s, which was made anew: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// attachTo attaches to an interface by the name that the table has for it, which
// may be any of its names, and says whether there was no program on it before.
func (d *Datapath) attachTo(name string, iface netlink.Link) (fresh bool, err error) {
	index := iface.Attrs().Index
	if a := d.attached[name]; a != nil && a.index == index {
		return false, nil
	}
	if err := d.renamePin(name, index); err != nil {
		return false, err
	}
	pin := d.kernel.linkPin(name)
	adopted, err := d.adopt(pin, index)
	if err != nil {
		return false, err
	}
	if adopted != nil {
		d.note(name, &attachment{adopted, index})
		d.log.Info("adopted", "interface", name)
		return false, nil
	}
	if d.holds {
		return false, nil
	}
	l, err := d.attachXDP(iface)
	if err != nil {
		return false, err
	}
	if err := l.Pin(pin); err != nil {
		l.Close()
		return false, fmt.Errorf("pin link: %w", err)
	}
	d.note(name, &attachment{l, index})
	// Some drivers send for XDP only where a program is, and nobody tells of that.
	d.hops.outdated(false)
	d.hops.tell()
	return true, nil
}

// note keeps an attachment in place of the one that the name had.
func (d *Datapath) note(name string, a *attachment) {
	if old := d.attached[name]; old != nil {
		old.close()
	}
	d.attached[name] = a
}

// renamePin gives the link of an interface that was attached under another name
// its new one: a second link is not possible.
func (d *Datapath) renamePin(name string, index int) error {
	pins, err := filepath.Glob(d.kernel.linkPin("*"))
	if err != nil {
		return err
	}
	for _, pin := range pins {
		at, err := pinnedIndex(pin)
		if err != nil {
			return err
		}
		if at != index || pin == d.kernel.linkPin(name) {
			continue
		}
		before := interfaceOfPin(pin, linkPrefix)
		if err := os.Rename(pin, d.kernel.linkPin(name)); err != nil {
			return fmt.Errorf("rename pinned link: %w", err)
		}
		if a := d.attached[before]; a != nil {
			a.close()
			delete(d.attached, before)
		}
		d.log.Info("renamed", "interface", name, "was", before)
		return nil
	}
	return nil
}

// pinnedIndex is the interface of a pinned link; 0: it is gone.
func pinnedIndex(pin string) (int, error) {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return 0, fmt.Errorf("open pinned link: %w", err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil || info.XDP() == nil {
		return 0, nil
	}
	return int(info.XDP().Ifindex), nil
}

// adopt takes over the link that is pinned for an interface, if it still is on it.
func (d *Datapath) adopt(pin string, index int) (link.Link, error) {
	pinned, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open pinned link: %w", err)
	}
	info, err := pinned.Info()
	if err == nil && info.XDP() != nil && int(info.XDP().Ifindex) == index {
		if err := d.replaceProgram(pinned, pin, d.attaching()); err != nil {
			pinned.Close()
			return nil, err
		}
		return pinned, nil
	}
	pinned.Close()
	return nil, unpinLink(pin)
}

func (d *Datapath) attachXDP(iface netlink.Link) (link.Link, error) {
	name := iface.Attrs().Name
	options := link.XDPOptions{Program: d.attaching(), Interface: iface.Attrs().Index, Flags: link.XDPDriverMode}
	if d.options.Mode == model.XDPGeneric {
		options.Flags = link.XDPGenericMode
	}
	l, err := link.AttachXDP(options)
	if err != nil && d.options.Mode == model.XDPAuto && errors.Is(err, unix.EOPNOTSUPP) {
		d.log.Warn("driver has no native XDP: using generic XDP, which is slow", "interface", name)
		options.Flags = link.XDPGenericMode
		l, err = link.AttachXDP(options)
	}
	switch {
	case err == nil:
		d.log.Info("attached", "interface", name, "xdp", xdpMode(iface.Attrs().Index))
		return l, nil
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("another XDP program%s is attached: remove it (ip link set dev %s xdp off, or its owner): %w",
			programID(iface), name, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, fmt.Errorf("driver has no native XDP (director.xdp: generic is the slow way out): %w", err)
	case errors.Is(err, unix.ERANGE), errors.Is(err, unix.EINVAL):
		return nil, fmt.Errorf("driver refuses XDP; often the MTU (%d) or receive offloads (LRO, too many queues) are why: %w",
			iface.Attrs().MTU, err)
	}
	return nil, err
}

// programID names the foreign program, if the kernel tells.
func programID(iface netlink.Link) string {
	if xdp := iface.Attrs().Xdp; xdp != nil && xdp.Attached {
		return fmt.Sprintf(" (id %d)", xdp.ProgId)
	}
	return ""
}

// xdpMode says how the program on an interface runs.
func xdpMode(index int) string {
	iface, err := netlink.LinkByIndex(index)
	if err != nil || iface.Attrs().Xdp == nil {
		return ""
	}
	switch iface.Attrs().Xdp.AttachMode {
	case nl.XDP_ATTACHED_DRV:
		return string(model.XDPNative)
	case nl.XDP_ATTACHED_SKB:
		return string(model.XDPGeneric)
	case nl.XDP_ATTACHED_HW:
		return "offloaded"
	}
	return ""
}

// unpinLink removes a pin, and with the last reference the program from its hook.
func unpinLink(pin string) error {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return fmt.Errorf("open pinned link: %w", err)
	}
	return errors.Join(l.Unpin(), l.Close())
}

// detachOthers removes what is in the kernel besides XDP.
func detachOthers(pin string) error {
	errs := []error{removeCheckDevice(pin), removeOnward(onwardName(pin))}
	for _, h := range tcHooks {
		errs = append(errs, detachTC(h, pin, nil))
	}
	return errors.Join(errs...)
}

// Detach removes the datapath that is pinned in a directory: from then on the
// kernel gets every packet. Nothing pinned is no error.
func Detach(pin string) error {
	lock, err := lockPins(pin)
	if errors.Is(err, os.ErrNotExist) {
		return detachOthers(pin)
	}
	if err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	defer lock.Close()
	links, err := filepath.Glob(filepath.Join(pin, linkPrefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		errs = append(errs, unpinLink(l))
	}
	errs = append(errs, detachOthers(pin))
	errs = append(errs, removeIn(pin, func(name string, directory bool) bool {
		return !directory || name == stateName || strings.HasPrefix(name, mapsPrefix) || strings.HasPrefix(name, programsPrefix)
	}))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("remove %s: %w", pin, err)
	}
	return nil
}
