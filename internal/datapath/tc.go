package datapath

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// tcHook is where in tc the director has programs, besides XDP: links hold them, or, before Linux 6.6,
// filters.
type tcHook struct {
	pinPrefix string // of its links
	device.Filter
	attach ebpf.AttachType
	anchor link.Anchor // where among other owners' programs; nil: behind them
}

// The hooks. Replies of nat backends on this host are translated where they leave the director's
// interfaces (bpf/director/nat/nat_tc_local.h). Full NAT's replies are translated where they come in by other interfaces
// that the director is told of (bpf/director/nat/nat_tc_reply.h). Both hooks are used only while some service is nat.
var (
	undoHook  = tcHook{"undo-", device.Filter{Name: "weir-undo-nat", Parent: netlink.HANDLE_MIN_EGRESS}, ebpf.AttachTCXEgress, nil}
	replyHook = tcHook{"reply-", device.Filter{Name: "weir-take-reply", Parent: netlink.HANDLE_MIN_INGRESS}, ebpf.AttachTCXIngress, link.Head()}
	tcHooks   = []tcHook{undoHook, replyHook}
)

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
		return h.Put(index, program.FD())
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
	return errors.Join(append(errs, device.RemoveFilters([]device.Filter{h.Filter}, func(index int) bool {
		link, err := netlink.LinkByIndex(index)
		return err != nil || slices.Contains(except, link.Attrs().Name)
	}))...)
}

// isOn says whether the hook's program is on an interface: by a pinned link, or in a filter.
func (h tcHook) isOn(dir, name string, iface netlink.Link) bool {
	if tcxIndex(filepath.Join(dir, h.pinPrefix+device.PinName(name))) == iface.Attrs().Index {
		return true
	}
	return h.IsOn(iface.Attrs().Index)
}

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
	names := nexthop.NamesOf(d.table.ReplyInterfaces, d.findInterfaces(d.table.ReplyInterfaces))
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
			if name := device.NameOf(uint32(b.answers), known); name != "" && !slices.Contains(names, name) {
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
