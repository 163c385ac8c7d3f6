package agent

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/upkeep"
)

// Attach is how packets that come in are caught.
type Attach string

// The ways to catch packets that come in. Those that leave are always caught by tc.
const (
	AttachAuto Attach = "auto" // native XDP, or tc where there is none or a director may want it
	AttachXDP  Attach = "xdp"  // native XDP or an error
	AttachTC   Attach = "tc"   // tcx, or clsact before Linux 6.6: leaves XDP to other programs
)

// Validate says whether there is such a way.
func (a Attach) Validate() error {
	switch a {
	case AttachAuto, AttachXDP, AttachTC:
		return nil
	}
	return fmt.Errorf("unknown way to attach %q (one of auto, tc, xdp)", string(a))
}

// Hooks, by the names of their pins: "xdp-2" is interface 2's.
const (
	hookXDP     = "xdp"
	hookIngress = "ingress"
	hookEgress  = "egress"
	hookArrive  = "arrive" // redirection, in addition to the other hooks
	hookLeave   = "leave"
)

var (
	hooks   = []string{hookXDP, hookIngress, hookEgress, hookArrive, hookLeave}
	tcHooks = hooks[1:]
)

// The ways that AgentInterface names.
const (
	viaXDP    = "xdp"
	viaTCX    = "tcx"
	viaClsact = "clsact"
)

// attachment is one uplink's programs.
type attachment struct {
	uplink
	ingress, egress string // how they are attached; empty: no tunnels come here
	redirect        string // the same for redirection; empty: it is not attached
	noXDP           string // why ingress is not XDP
}

// attacher attaches programs to uplinks and keeps the links pinned.
type attacher struct {
	*kernel
	how      Attach
	director bool // this host is a director, too
	serves   bool // tunnels come here
	noTCX    bool // behave as before Linux 6.6
}

// attach attaches to an uplink. A link that is attached already gets the program of this version in
// one step, without losing a packet. The new way is in place before the old one goes: an unwrapped
// packet is not a tunnel packet, so two programs do no harm.
func (a *attacher) attach(u uplink) (attachment, error) {
	at := attachment{uplink: u}
	if u.replies {
		return a.attachReplies(u)
	}
	if a.serves {
		var err error
		if at, err = a.attachHost(u); err != nil {
			return at, err
		}
	} else if err := a.detachHost(u); err != nil {
		return at, err
	}
	if a.redirector == nil {
		return at, nil
	}
	// RedirectLeave asks for answers that only RedirectArrive understands, so that one comes first.
	_, err := a.attachTC(u, hookArrive, a.redirector.RedirectArrive)
	if err == nil {
		at.redirect, err = a.attachTC(u, hookLeave, a.redirector.RedirectLeave)
	}
	return at, err
}

// attachReplies attaches the program for pods' answers that leave.
func (a *attacher) attachReplies(u uplink) (attachment, error) {
	at := attachment{uplink: u}
	if !a.serves {
		return at, a.detachHost(u)
	}
	var err error
	if at.egress, err = a.attachTC(u, hookEgress, a.objects.HostEgress); err != nil {
		return at, err
	}
	// Tunnels may have come in by this interface before.
	return at, errors.Join(a.links.unpin(hookXDP, u.index), a.links.unpin(hookIngress, u.index), filterOf(hookIngress).Remove(u.index))
}

// attachHost attaches the programs that unwrap tunnels.
func (a *attacher) attachHost(u uplink) (attachment, error) {
	at := attachment{uplink: u}
	err := a.attachXDP(u)
	switch {
	case err == nil:
		at.ingress = viaXDP
	case a.how == AttachXDP:
		return at, fmt.Errorf("attach native XDP to %s: %w", u.name, err)
	default:
		at.noXDP = err.Error()
	}
	if at.ingress == viaXDP {
		// XDP leaves packets to this program if it finds no connection for them.
		_, err = a.attachTC(u, hookIngress, a.objects.HostAfterXdp)
	} else {
		at.ingress, err = a.attachTC(u, hookIngress, a.objects.HostIngress)
	}
	if err != nil {
		return at, err
	}
	if at.ingress != viaXDP {
		if err := a.links.unpin(hookXDP, u.index); err != nil {
			return at, fmt.Errorf("detach from %s: %w", u.name, err)
		}
	}
	at.egress, err = a.attachTC(u, hookEgress, a.objects.HostEgress)
	return at, err
}

// detachHost detaches these programs where they were attached.
func (a *attacher) detachHost(u uplink) error {
	var errs []error
	for _, hook := range []string{hookXDP, hookIngress, hookEgress} {
		errs = append(errs, a.links.unpin(hook, u.index))
	}
	return errors.Join(append(errs, filterOf(hookIngress).Remove(u.index), filterOf(hookEgress).Remove(u.index))...)
}

// An interface has room for one XDP program. If this host is a director, that is the director's
// program, whichever of the two is started first.
var (
	errNotWanted = errors.New("tc was asked for")
	errDirector  = errors.New("this host's address is one of directors, so XDP is the director's")
)

func (a *attacher) attachXDP(u uplink) error {
	switch {
	case a.how == AttachTC:
		return errNotWanted
	case a.how == AttachAuto && a.director:
		return errDirector
	}
	if adopted, err := a.links.adopt(hookXDP, u.index, a.objects.HostXdp); adopted || err != nil {
		return err
	}
	l, err := link.AttachXDP(link.XDPOptions{
		Program: a.objects.HostXdp, Interface: u.index, Flags: link.XDPDriverMode,
	})
	if err != nil {
		return explainXDP(err)
	}
	return a.links.pin(l, hookXDP, u.index)
}

// tcxType is the type of a hook's links.
func tcxType(hook string) ebpf.AttachType {
	if leaves(hook) {
		return ebpf.AttachTCXEgress
	}
	return ebpf.AttachTCXIngress
}

// attachTC attaches by tcx, or by clsact if there is no tcx.
func (a *attacher) attachTC(u uplink, hook string, program *ebpf.Program) (via string, err error) {
	adopted, err := a.links.adopt(hook, u.index, program)
	if err != nil {
		return "", fmt.Errorf("update %s of %s: %w", hook, u.name, err)
	}
	if adopted {
		return viaTCX, nil
	}
	if a.noTCX {
		return viaClsact, putFilter(u, hook, program)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: u.index, Program: program, Attach: tcxType(hook)})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return viaClsact, putFilter(u, hook, program)
	}
	if err != nil {
		return "", fmt.Errorf("attach tcx %s to %s: %w", hook, u.name, err)
	}
	if err := a.links.pin(l, hook, u.index); err != nil {
		return "", err
	}
	// A kernel that has tcx now may have had to use clsact before.
	return viaTCX, filterOf(hook).Remove(u.index)
}

// Before Linux 6.6 there is no tcx: filters hold the programs.
const (
	filterPrefix     = "weir-host-"
	redirectPriority = device.FilterPriority + 1 // after the others: a packet that redirection sends away is gone
)

// leaves says whether the hook is for packets that leave.
func leaves(hook string) bool { return hook == hookEgress || hook == hookLeave }

func filterOf(hook string) device.Filter {
	f := device.Filter{Name: filterPrefix + hook, Parent: netlink.HANDLE_MIN_INGRESS}
	if leaves(hook) {
		f.Parent = netlink.HANDLE_MIN_EGRESS
	}
	if hook == hookArrive || hook == hookLeave {
		f.Priority = redirectPriority
	}
	return f
}

func allFilters() (all []device.Filter) {
	for _, hook := range tcHooks {
		all = append(all, filterOf(hook))
	}
	return all
}

// putFilter attaches the program, or replaces the one that is attached.
func putFilter(u uplink, hook string, program *ebpf.Program) error {
	if err := filterOf(hook).Put(u.index, program.FD()); err != nil {
		return fmt.Errorf("attach to %s: %w", u.name, err)
	}
	return nil
}

// isNamed says whether a filter is a hook's. The kernel may append to the name.
func isNamed(name, hook string) bool { return strings.HasPrefix(name, filterPrefix+hook) }

// hasFilters reports whether an interface has filters of the agent's.
func hasFilters(index int) bool {
	return slices.ContainsFunc(allFilters(), func(f device.Filter) bool { return f.IsOn(index) })
}

// removeFilters removes the filters of all interfaces except some, by index.
func removeFilters(except map[string]bool) error {
	return device.RemoveFilters(allFilters(), func(index int) bool { return except[strconv.Itoa(index)] })
}

// wanted is one program that an attachment has.
type wanted struct {
	hook, via string
	program   *ebpf.Program
}

// wanted returns the programs that an attachment has.
func (a *attacher) wanted(at attachment) (list []wanted) {
	if at.ingress == viaXDP {
		// Packets that come in by XDP go through tc, too. Its ingress program is attached
		// in the same way as its egress program.
		list = append(list, wanted{hookXDP, viaXDP, a.objects.HostXdp}, wanted{hookIngress, at.egress, a.objects.HostAfterXdp})
	} else if at.ingress != "" {
		list = append(list, wanted{hookIngress, at.ingress, a.objects.HostIngress})
	}
	if at.egress != "" {
		list = append(list, wanted{hookEgress, at.egress, a.objects.HostEgress})
	}
	if at.redirect != "" && a.redirector != nil {
		list = append(list, wanted{hookArrive, at.redirect, a.redirector.RedirectArrive}, wanted{hookLeave, at.redirect, a.redirector.RedirectLeave})
	}
	return list
}

// wrong returns the fault of a program that should be attached; empty: it has none.
func (a *attacher) wrong(u uplink, w wanted) (string, error) {
	if w.via != viaClsact {
		return a.links.holds(w.hook, u.index, w.program)
	}
	return filterWrong(u, w.hook, w.program)
}

// filterWrong says what is wrong with a filter that should hold a program.
func filterWrong(u uplink, hook string, program *ebpf.Program) (string, error) {
	filters, err := netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: u.index}}, filterOf(hook).Parent)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return "has no program: there is no clsact", nil
	}
	if err != nil {
		return "", fmt.Errorf("list filters of %s: %w", u.name, err)
	}
	for _, f := range filters {
		bpf, ok := f.(*netlink.BpfFilter)
		if !ok || !isNamed(bpf.Name, hook) {
			continue
		}
		if id, known := programID(program); known && int(id) != bpf.Id {
			return "has " + describeProgram(ebpf.ProgramID(bpf.Id)), nil
		}
		return "", nil
	}
	return "has no program: the filter was removed", nil
}

// behind says which program of another owner sees packets before one of the agent's does, at a hook
// of tcx; nil: none does. It may keep packets, or let them go on to the kernel without the agent:
// that cannot be told. It has its place by right, so it is reported and left there.
func (k *kernel) behind(at attachment, w wanted) (*upkeep.Difference, error) {
	if w.via != viaTCX {
		return nil, nil
	}
	list, err := link.QueryPrograms(link.QueryOptions{Target: at.index, Attach: tcxType(w.hook)})
	if err != nil {
		return nil, fmt.Errorf("list programs of %s: %w", at.name, err)
	}
	own, known := programID(w.program)
	var others []ebpf.ProgramID
	for _, p := range list.Programs {
		if p.ID == own {
			break
		}
		others = append(others, p.ID)
	}
	if !known || len(others) == 0 {
		return nil, nil
	}
	ours, err := k.ownPrograms()
	if err != nil {
		return nil, err
	}
	for _, id := range others {
		if !ours[id] {
			return &upkeep.Difference{What: w.hook + " of " + at.name, Found: "is behind " + describeProgram(id) + ": what that one keeps never comes to the agent"}, nil
		}
	}
	return nil, nil
}

// ownPrograms are the programs of this agent, and of a director on the same host.
func (k *kernel) ownPrograms() (map[ebpf.ProgramID]bool, error) {
	ours := map[ebpf.ProgramID]bool{}
	programs := []*ebpf.Program{k.objects.HostXdp, k.objects.HostIngress, k.objects.HostAfterXdp, k.objects.HostEgress}
	if k.redirector != nil {
		programs = append(programs, k.redirector.RedirectArrive, k.redirector.RedirectLeave)
	}
	for _, p := range programs {
		if id, known := programID(p); known {
			ours[id] = true
		}
	}
	pins, err := filepath.Glob(filepath.Join(filepath.Dir(k.pins.root), "programs-*", "*"))
	if err != nil {
		return nil, fmt.Errorf("find a director's programs: %w", err)
	}
	for _, pin := range pins {
		p, err := ebpf.LoadPinnedProgram(pin, nil)
		if err != nil {
			continue // it is not a program, or is gone meanwhile
		}
		if id, known := programID(p); known {
			ours[id] = true
		}
		if err := p.Close(); err != nil {
			return nil, errors.Join(fmt.Errorf("close %s", pin), err)
		}
	}
	return ours, nil
}

// explainXDP says what a refusal means.
func explainXDP(err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return errors.New("the driver has no XDP")
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return errors.New("another XDP program is attached")
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.E2BIG):
		return fmt.Errorf("the driver refuses XDP with the interface's MTU or offloads: %w", err)
	}
	return err
}
