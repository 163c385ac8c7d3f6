package datapath

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/checks"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// attachment is the director on one interface.
type attachment struct {
	link  link.Link
	index int
	fresh bool // there was no program on the interface before
}

func (a *attachment) close() { a.link.Close() }

// holds says whether the program is still on the interface: a link has no interface any more after
// it was detached, or after its interface is gone.
func (a *attachment) holds() bool {
	info, err := a.link.Info()
	return err == nil && info.XDP() != nil && int(info.XDP().Ifindex) == a.index
}

// program is the ID of the link's program; 0: it has none.
func (a *attachment) program() ebpf.ProgramID {
	info, err := a.link.Info()
	if err != nil {
		return 0
	}
	return info.Program
}

func (p *pins) linkPin(name string) string {
	return filepath.Join(p.pin, linkPrefix+device.PinName(name))
}

// interfaceOfPin is the interface whose link is pinned there.
func interfaceOfPin(pin, prefix string) string {
	return device.PinnedInterface(filepath.Base(pin)[len(prefix):])
}

// attach makes the program run on exactly these interfaces, if packets need not be held. A link
// that is pinned already gets the program in one step, so that every packet meets a program. An
// interface that is not there, or does not take the program, is left to Parts. While an interface
// of the table is missing, interfaces that leave the table keep the program: a mistyped name must
// not take it off all of them. After an error the program is where it was before.
func (d *Datapath) attach(interfaces []string, links []netlink.Link) error {
	var made []string
	for i, name := range interfaces {
		if links[i] == nil {
			continue
		}
		var refused *refusedError
		came, err := d.attachTo(name, links[i])
		if err != nil && !errors.As(err, &refused) {
			return errors.Join(fmt.Errorf("attach to %s: %w", name, err), d.detachFrom(made))
		}
		if came && d.attached[name].fresh {
			made = append(made, name)
		}
	}
	return d.detachOthers(interfaces, links)
}

// detachOthers takes the program off interfaces that are not in the table, once all interfaces of
// the table are there.
func (d *Datapath) detachOthers(interfaces []string, links []netlink.Link) error {
	if slices.Contains(links, nil) {
		return nil
	}
	names := slices.Sorted(maps.Keys(d.attached))
	if d.kernel.ensureOwned() == nil { // links of earlier processes, too
		pins, err := filepath.Glob(d.kernel.linkPin("*"))
		if err != nil {
			return err
		}
		for _, pin := range pins {
			names = append(names, interfaceOfPin(pin, linkPrefix))
		}
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if slices.Contains(interfaces, name) {
			continue
		}
		if err := d.detachFrom([]string{name}); err != nil {
			return err
		}
	}
	return nil
}

// Admit attaches the program to the interfaces of the last Set that were held without it, and to
// those of each Set after it.
func (d *Datapath) Admit() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holds = false
	defer d.hears.Store(true)
	if !d.begun {
		return nil
	}
	d.lookUpInterfaces(d.table.Interfaces)
	return d.switchPrograms(d.table.Interfaces, d.links, d.have.haveReplies())
}

func (d *Datapath) detachFrom(interfaces []string) error {
	for _, name := range interfaces {
		if a := d.attached[name]; a != nil {
			a.close()
			delete(d.attached, name)
		}
		if d.kernel.ensureOwned() == nil {
			if err := unpinLink(d.kernel.linkPin(name)); err != nil {
				return fmt.Errorf("detach from %s: %w", name, err)
			}
		}
		d.log.Info("detached", "interface", name)
	}
	return nil
}

// reattach follows interfaces that come, or were made anew under their names: the kernel took the
// program from the old ones when they went. An interface that does not take the program is left to
// Parts.
func (d *Datapath) reattach() error {
	var errs []error
	for i, name := range d.table.Interfaces {
		link := d.links[i]
		if link == nil {
			continue
		}
		var refused *refusedError
		came, err := d.attachTo(name, link)
		if err == nil && came && d.have.haveReplies() {
			err = d.attachUndoTo(link)
		}
		if err != nil && !errors.As(err, &refused) {
			errs = append(errs, fmt.Errorf("attach to %s: %w", name, err))
		}
	}
	return errors.Join(append(errs, d.detachOthers(d.table.Interfaces, d.links))...)
}

// refusedError says that an interface does not take the program now. It may take it later, when
// another program leaves it, or when its MTU or features change.
type refusedError struct{ error }

// Unwrap returns what the kernel said.
func (e *refusedError) Unwrap() error { return e.error }

// attachTo attaches to an interface by its name in the table, which may be any of its names. It
// says whether this process knew of no attachment to the interface before. The error is a
// refusedError if the interface does not take the program.
func (d *Datapath) attachTo(name string, iface netlink.Link) (came bool, err error) {
	index := iface.Attrs().Index
	if a := d.attached[name]; a != nil && a.index == index {
		return false, nil
	}
	if err := d.kernel.ensureOwned(); err != nil {
		return false, fmt.Errorf("pin link: %w", err)
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
		if has := xdpMode(index); d.isOtherMode(has) {
			if adopted, err = d.changeMode(adopted, pin, iface, has); err != nil {
				return false, err
			}
		}
		d.note(name, &attachment{link: adopted, index: index})
		d.log.Info("adopted", "interface", iface.Attrs().Name)
		return true, nil
	}
	if d.holds {
		return false, nil
	}
	l, err := d.attachXDP(iface)
	if err != nil {
		return false, &refusedError{err}
	}
	if err := l.Pin(pin); err != nil {
		l.Close()
		return false, fmt.Errorf("pin link: %w", err)
	}
	d.note(name, &attachment{link: l, index: index, fresh: true})
	// Some drivers send for XDP only where a program is attached, and no event says so.
	d.hops.Refresh()
	return true, nil
}

// note keeps an attachment in place of the one under the same name.
func (d *Datapath) note(name string, a *attachment) {
	if old := d.attached[name]; old != nil {
		old.close()
	}
	d.attached[name] = a
	d.hears.Store(true)
}

// renamePin gives the link of an interface that was attached under another name its new pin: an
// interface cannot have a second link.
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

// adopt takes over the link that is pinned for an interface, if the link is still on it.
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

// isOtherMode reports whether director.xdp asks for another mode than an interface has.
func (d *Datapath) isOtherMode(has string) bool {
	want := d.options.Mode
	return has != "" && (want == model.XDPNative || want == model.XDPGeneric) && has != string(want)
}

// changeMode attaches in the mode that is asked for. The kernel has no program on an interface in two
// modes, so there is none for a moment. An interface that does not take the program in that mode goes
// on in the one that it had, and Parts tell it.
func (d *Datapath) changeMode(l link.Link, pin string, iface netlink.Link, has string) (link.Link, error) {
	if err := errors.Join(l.Unpin(), l.Close()); err != nil {
		return nil, fmt.Errorf("take the program off: %w", err)
	}
	changed, err := d.attachXDP(iface)
	if err != nil {
		flags := link.XDPDriverMode
		if has == string(model.XDPGeneric) {
			flags = link.XDPGenericMode
		}
		d.log.Error("the interface goes on in the mode that it had", "interface", iface.Attrs().Name, "xdp", has, "error", err)
		var back error
		if changed, back = link.AttachXDP(link.XDPOptions{Program: d.attaching(), Interface: iface.Attrs().Index, Flags: flags}); back != nil {
			return nil, &refusedError{errors.Join(err, back)}
		}
	}
	if err := changed.Pin(pin); err != nil {
		return nil, errors.Join(fmt.Errorf("pin link: %w", err), changed.Close())
	}
	return changed, nil
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

// programID names another owner's program, if the kernel tells.
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

// unpinLink removes a pin. With the last reference, the program leaves its hook.
func unpinLink(pin string) error {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return fmt.Errorf("open pinned link: %w", err)
	}
	return errors.Join(l.Unpin(), l.Close())
}

// detachRest removes what is in the kernel besides XDP.
func detachRest(pin string) error {
	errs := []error{checks.RemoveDevice(pin), nexthop.RemoveOnward(nexthop.OnwardName(pin))}
	for _, h := range tcHooks {
		errs = append(errs, detachTC(h, pin, nil))
	}
	return errors.Join(errs...)
}

// Detach removes the datapath that is pinned in a directory: from then on the kernel gets every
// packet. It is no error if nothing is pinned.
func Detach(pin string) error {
	lock, err := lockPins(pin)
	nothing := errors.Is(err, os.ErrNotExist)
	if err != nil && !nothing {
		return fmt.Errorf("detach: %w", named(pin, err))
	}
	defer lock.Close()
	sole, err := lockNamespace(pin)
	if errors.Is(err, ErrRunning) {
		return fmt.Errorf("detach: %w", err)
	}
	defer sole.Close()
	if nothing {
		return detachRest(pin)
	}
	links, err := filepath.Glob(filepath.Join(pin, linkPrefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		errs = append(errs, unpinLink(l))
	}
	errs = append(errs, detachRest(pin))
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
