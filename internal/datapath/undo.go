package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The replies of nat backends on this host are translated where they leave the
// director's interfaces, by a second program (bpf/undo.h). It is there only while
// some service is nat.

const undoPinPrefix = "undo-"

// attachUndo makes the program run on exactly these interfaces.
func (d *Datapath) attachUndo(interfaces []string) error {
	for _, name := range interfaces {
		iface, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		if err := d.attachUndoTo(name, iface.Attrs().Index); err != nil {
			return fmt.Errorf("attach to %s on its way out: %w", name, err)
		}
	}
	pins, err := filepath.Glob(filepath.Join(d.kernel.pin, undoPinPrefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, pin := range pins {
		name := filepath.Base(pin)[len(undoPinPrefix):]
		if slices.Contains(interfaces, name) {
			continue
		}
		errs = append(errs, unpinLink(pin))
	}
	return errors.Join(append(errs, removeUndoFilters(interfaces))...)
}

func (d *Datapath) attachUndoTo(name string, index int) error {
	program, pin := d.kernel.undo, filepath.Join(d.kernel.pin, undoPinPrefix+name)
	adopted, err := d.adoptUndo(pin, index, program)
	if adopted || err != nil {
		return err
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXEgress})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return putFilter(index, program, undoFilterName)
	}
	if err != nil {
		return err
	}
	return errors.Join(l.Pin(pin), l.Close())
}

// adoptUndo gives the program to the link that is pinned, if it still is on the
// interface.
func (d *Datapath) adoptUndo(pin string, index int, program *ebpf.Program) (bool, error) {
	pinned, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open pinned link: %w", err)
	}
	defer pinned.Close()
	info, err := pinned.Info()
	if err != nil || info.TCX() == nil || int(info.TCX().Ifindex) != index {
		return false, pinned.Unpin()
	}
	if err := d.replaceProgram(pinned, pin, program); err != nil {
		return false, err
	}
	return true, nil
}

// Before Linux 6.6 there is no tcx, so no link either: a filter of the clsact
// queueing discipline holds the program. It is replaced in one step, and found
// again by its name.
const (
	undoFilterName = "weir-undo-nat"
	filterPriority = 87 // 'W'; filters of other numbers are others'
)

func putFilter(index int, program *ebpf.Program, name string) error {
	err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact: %w", err)
	}
	err = netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1,
			Protocol: unix.ETH_P_ALL, Priority: filterPriority,
		},
		Fd: program.FD(), Name: name, DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("attach clsact filter: %w", err)
	}
	return nil
}

// removeUndoFilters removes the filters of all interfaces but some. Their
// queueing disciplines stay, others may use them.
func removeUndoFilters(except []string) error {
	qdiscs, err := netlink.QdiscList(nil)
	if err != nil {
		return fmt.Errorf("list queueing disciplines: %w", err)
	}
	var errs []error
	for _, q := range qdiscs {
		if q.Type() != "clsact" {
			continue
		}
		iface, err := netlink.LinkByIndex(q.Attrs().LinkIndex)
		if err != nil || slices.Contains(except, iface.Attrs().Name) {
			continue
		}
		filters, err := netlink.FilterList(iface, netlink.HANDLE_MIN_EGRESS)
		if err != nil {
			errs = append(errs, fmt.Errorf("list filters of %s: %w", iface.Attrs().Name, err))
		}
		for _, f := range filters {
			if bpf, ok := f.(*netlink.BpfFilter); ok && bpf.Name == undoFilterName {
				errs = append(errs, netlink.FilterDel(f))
			}
		}
	}
	return errors.Join(errs...)
}
