package agent

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
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

var hooks = []string{hookXDP, hookIngress, hookEgress, hookArrive, hookLeave}

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
	*links
	objects  *bpfObjects
	how      Attach
	director bool // this host is a director, too
	serves   bool // tunnels come here
	noTCX    bool // behave as before Linux 6.6

	redirector *redirector // nil: nothing is redirected
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
	return at, errors.Join(a.unpin(hookXDP, u.index), a.unpin(hookIngress, u.index), removeFilter(u, hookIngress))
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
		if err := a.unpin(hookXDP, u.index); err != nil {
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
		errs = append(errs, a.unpin(hook, u.index))
	}
	return errors.Join(append(errs, removeFilter(u, hookIngress), removeFilter(u, hookEgress))...)
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
	if adopted, err := a.adopt(hookXDP, u.index, a.objects.HostXdp); adopted || err != nil {
		return err
	}
	l, err := link.AttachXDP(link.XDPOptions{
		Program: a.objects.HostXdp, Interface: u.index, Flags: link.XDPDriverMode,
	})
	if err != nil {
		return explainXDP(err)
	}
	return a.pin(l, hookXDP, u.index)
}

// attachTC attaches by tcx, or by clsact if there is no tcx.
func (a *attacher) attachTC(u uplink, hook string, program *ebpf.Program) (via string, err error) {
	attach := ebpf.AttachTCXIngress
	if leaves(hook) {
		attach = ebpf.AttachTCXEgress
	}
	adopted, err := a.adopt(hook, u.index, program)
	if err != nil {
		return "", fmt.Errorf("update %s of %s: %w", hook, u.name, err)
	}
	if adopted {
		return viaTCX, nil
	}
	if a.noTCX {
		return viaClsact, putFilter(u, hook, program)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: u.index, Program: program, Attach: attach})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return viaClsact, putFilter(u, hook, program)
	}
	if err != nil {
		return "", fmt.Errorf("attach tcx %s to %s: %w", hook, u.name, err)
	}
	if err := a.pin(l, hook, u.index); err != nil {
		return "", err
	}
	// A kernel that has tcx now may have had to use clsact before.
	return viaTCX, removeFilter(u, hook)
}
