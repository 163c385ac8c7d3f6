package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"

	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
)

// bfdKeeper gives the BFD process the sessions that go with what the kernel has.
type bfdKeeper struct {
	*bfd.Keeper

	mu         sync.Mutex
	wanted     []model.BFDSession // by the configuration
	interfaces []string           // that the program is attached to, or is about to be
	admitted   bool               // it is
}

func newBFDKeeper(o *runOptions, tell func(model.BFDStatus), log *slog.Logger) *bfdKeeper {
	socket := bfdSocket(o.socket)
	return &bfdKeeper{Keeper: bfd.NewKeeper(socket, func() error { return startBFD(o, socket) }, tell, log)}
}

// startBFD starts a process that outlives this one: in a session of its own, so that no
// signal that is meant for this one reaches it, and with those capabilities alone that are its.
func startBFD(o *runOptions, socket string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(self, append([]string{"bfd", "--socket", socket, "--bpffs", o.bpffs}, o.log.Args()...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, AmbientCaps: privilege.HandOn(privilege.BFD)}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // how it ended is in the log
	return nil
}

// want takes the neighbours of a configuration.
func (k *bfdKeeper) want(c *model.Config) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wanted = c.BFDSessions()
	if k.interfaces != nil {
		k.set(k.interfaces)
	}
}

// Sessions returns how the sessions are that there are to be. Of those that the process does
// not know of, or while it says nothing, only whose they are is known.
func (k *bfdKeeper) Sessions() []model.BFDSessionStatus {
	status, _ := k.Status()
	k.mu.Lock()
	defer k.mu.Unlock()
	var sessions []model.BFDSessionStatus
	for i := range k.wanted {
		w := &k.wanted[i]
		one := model.BFDSessionStatus{Neighbor: w.Neighbor, Source: w.Source, Multihop: w.Multihop}
		for _, s := range status.Sessions {
			if s.Neighbor == w.Neighbor && s.Source == w.Source && s.Multihop == w.Multihop {
				one = s
			}
		}
		sessions = append(sessions, one)
	}
	return sessions
}

// before makes the sessions stand for those interfaces alone that have the program and
// will have it: the others are about to lose it, and that is no failure.
func (k *bfdKeeper) before(interfaces []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if both := common(k.interfaces, interfaces); len(both) > 0 && len(both) < len(k.interfaces) {
		k.set(both)
	}
}

// after makes the sessions stand for the interfaces that have the program now.
func (k *bfdKeeper) after(interfaces []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.interfaces = interfaces
	k.set(interfaces)
}

// admit says that the program is attached to the interfaces of the last Set, and from now on to
// those of each. A director that starts on a host without one fills its maps before: a session
// would stand for a datapath that is not there, be down for that, and say so to its router, which
// and BGP here would wait a second until they look again.
func (k *bfdKeeper) admit() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.admitted = true
	if k.interfaces != nil {
		k.set(k.interfaces)
	}
}

// set gives the sessions on, if the program gets packets. One whose interfaces are all others
// keeps them: it is down, and says so.
func (k *bfdKeeper) set(interfaces []string) {
	if !k.admitted {
		return
	}
	sessions := slices.Clone(k.wanted)
	for i := range sessions {
		if kept := common(sessions[i].Interfaces, interfaces); len(kept) > 0 {
			sessions[i].Interfaces = kept
		}
	}
	k.Set(sessions)
}

// common returns what is in both.
func common(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(name string) bool { return !slices.Contains(b, name) })
}
