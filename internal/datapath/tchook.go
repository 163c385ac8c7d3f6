package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
)

// tcHook is where in tc the director has programs, besides XDP. Before Linux 6.6 there is no tcx,
// and so no link: a filter of the clsact queueing discipline holds the program. It is replaced in
// one step, and found again by its name.
type tcHook struct {
	pinPrefix string // of its links
	filter    string // the filters' name
	attach    ebpf.AttachType
	anchor    link.Anchor // where among other owners' programs; nil: behind them
	parent    uint32      // of the filters
}

// The hooks. Replies of nat backends on this host are translated where they leave the director's
// interfaces (bpf/director/nat/nat_tc_local.h). Full NAT's replies are translated where they come in by other interfaces
// that the director is told of (bpf/director/nat/nat_tc_reply.h). Both hooks are used only while some service is nat.
var (
	undoHook  = tcHook{"undo-", "weir-undo-nat", ebpf.AttachTCXEgress, nil, netlink.HANDLE_MIN_EGRESS}
	replyHook = tcHook{"reply-", "weir-take-reply", ebpf.AttachTCXIngress, link.Head(), netlink.HANDLE_MIN_INGRESS}
	tcHooks   = []tcHook{undoHook, replyHook}
)

const filterPriority = 87 // 'W'; filters with other numbers have other owners

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

// attachTC attaches a program to an interface, in place of the one before. Where another director has
// taken the pins it does nothing: Parts say what is missing.
func (d *Datapath) attachTC(h tcHook, name string, index int, program *ebpf.Program) error {
	if d.kernel.ensureOwned() != nil {
		return nil
	}
	pin := filepath.Join(d.kernel.pin, h.pinPrefix+device.PinName(name))
	if err := h.renamePin(d.kernel.pin, pin, index); err != nil {
		return err
	}
	adopted, err := d.adoptTC(pin, index, program)
	if adopted || err != nil {
		return err
	}
	l, err := h.attachLink(index, program)
	if errors.Is(err, ebpf.ErrNotSupported) {
		return putFilter(index, h.parent, program, h.filter)
	}
	if err != nil {
		return err
	}
	return errors.Join(l.Pin(pin), l.Close())
}

// The kernel lets go of a link a moment after its last pin was removed (bpf_link_put_deferred in
// kernel/bpf/syscall.c). Until then the program is on the interface, and cannot be attached again.
const (
	releaseLooks = 20
	releasePause = 5 * time.Millisecond
)

func (h tcHook) attachLink(index int, program *ebpf.Program) (l link.Link, err error) {
	for range releaseLooks {
		l, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: h.attach, Anchor: h.anchor})
		if !errors.Is(err, unix.EEXIST) {
			return l, err
		}
		time.Sleep(releasePause)
	}
	return l, err
}

// renamePin gives the link of an interface that was attached under another name its new pin: the
// program cannot be attached twice.
func (h tcHook) renamePin(dir, pin string, index int) error {
	pins, err := h.pins(dir)
	if err != nil {
		return err
	}
	for _, path := range pins {
		if path == pin || tcxIndex(path) != index {
			continue
		}
		if err := os.Rename(path, pin); err != nil {
			return fmt.Errorf("rename pinned link: %w", err)
		}
		return nil
	}
	return nil
}

// tcxIndex is the interface of a pinned link; 0: it is gone.
func tcxIndex(pin string) int {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return 0
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil || info.TCX() == nil {
		return 0
	}
	return int(info.TCX().Ifindex)
}

// adoptTC gives the program to the link that is pinned, if the link is still on the interface.
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

// detachTC takes the programs of a hook off all interfaces except some, unless another
// director has taken the pins.
func (d *Datapath) detachTC(h tcHook, except []string) error {
	if d.kernel.ensureOwned() != nil {
		return nil
	}
	return detachTC(h, d.kernel.pin, except)
}

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

// isOn says whether the hook's program is on an interface: by a pinned link, or in a filter.
func (h tcHook) isOn(dir, name string, iface netlink.Link) bool {
	if tcxIndex(filepath.Join(dir, h.pinPrefix+device.PinName(name))) == iface.Attrs().Index {
		return true
	}
	return hasFilter(iface, h.parent, h.filter)
}

// hasFilter says whether a program is in a filter of that name.
func hasFilter(iface netlink.Link, parent uint32, name string) bool {
	filters, err := netlink.FilterList(iface, parent)
	return err == nil && slices.ContainsFunc(filters, func(f netlink.Filter) bool {
		bpf, ok := f.(*netlink.BpfFilter)
		return ok && bpf.Name == name
	})
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

// removeFilters removes the filters of all interfaces except some. The queueing disciplines
// stay, because other programs may use them.
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
