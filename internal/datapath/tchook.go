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

	"weir.io/weir/internal/device"
)

// tcHook is where in tc programs of the director's are, besides XDP. Before Linux 6.6 there is
// no tcx, so no link either: a filter of the clsact queueing discipline holds the program. It is
// replaced in one step, and found again by its name.
type tcHook struct {
	pinPrefix string // of its links
	filter    string // the filters' name
	attach    ebpf.AttachType
	anchor    link.Anchor // where among the programs of others; nil: behind them
	parent    uint32      // of the filters
}

// The hooks. Replies of nat backends on this host are translated where they leave the director's
// interfaces (bpf/undo.h); and full NAT's replies where they come in by other interfaces that
// the director is told of (bpf/back.h). Both are there only while some service is nat.
var (
	undoHook  = tcHook{"undo-", "weir-undo-nat", ebpf.AttachTCXEgress, nil, netlink.HANDLE_MIN_EGRESS}
	replyHook = tcHook{"reply-", "weir-take-reply", ebpf.AttachTCXIngress, link.Head(), netlink.HANDLE_MIN_INGRESS}
	tcHooks   = []tcHook{undoHook, replyHook}
)

const filterPriority = 87 // 'W'; filters of other numbers are others'

// pins are the paths of its links' pins, by their interfaces.
func (h tcHook) pins(pin string) (map[string]string, error) {
	paths, err := filepath.Glob(filepath.Join(pin, h.pinPrefix+"*"))
	if err != nil {
		return nil, err
	}
	byName := map[string]string{}
	for _, path := range paths {
		byName[interfaceOfPin(path, h.pinPrefix)] = path
	}
	return byName, nil
}

// attachTC attaches a program to an interface, in place of the one before.
func (d *Datapath) attachTC(h tcHook, name string, index int, program *ebpf.Program) error {
	pin := filepath.Join(d.kernel.pin, h.pinPrefix+device.PinName(name))
	adopted, err := d.adoptTC(pin, index, program)
	if adopted || err != nil {
		return err
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: h.attach, Anchor: h.anchor})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return putFilter(index, h.parent, program, h.filter)
	}
	if err != nil {
		return err
	}
	return errors.Join(l.Pin(pin), l.Close())
}

// adoptTC gives the program to the link that is pinned, if it still is on the interface.
func (d *Datapath) adoptTC(pin string, index int, program *ebpf.Program) (bool, error) {
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

// detachTC takes the programs of a hook from all interfaces but some.
func detachTC(h tcHook, pin string, except []string) error {
	pins, err := h.pins(pin)
	if err != nil {
		return err
	}
	var errs []error
	for name, path := range pins {
		if !slices.Contains(except, name) {
			errs = append(errs, unpinLink(path))
		}
	}
	return errors.Join(append(errs, h.removeFilters(except))...)
}

// putFilter puts the program in a filter, by its name.
func putFilter(index int, parent uint32, program *ebpf.Program, name string) error {
	err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact: %w", err)
	}
	err = netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: parent, Handle: 1,
			Protocol: unix.ETH_P_ALL, Priority: filterPriority,
		},
		Fd: program.FD(), Name: name, DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("attach clsact filter: %w", err)
	}
	return nil
}

// removeFilters removes the filters of all interfaces but some. Their
// queueing disciplines stay, others may use them.
func (h tcHook) removeFilters(except []string) error {
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
		filters, err := netlink.FilterList(iface, h.parent)
		if err != nil {
			errs = append(errs, fmt.Errorf("list filters of %s: %w", iface.Attrs().Name, err))
		}
		for _, f := range filters {
			if bpf, ok := f.(*netlink.BpfFilter); ok && bpf.Name == h.filter {
				errs = append(errs, netlink.FilterDel(f))
			}
		}
	}
	return errors.Join(errs...)
}
