package director

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
	"weir.io/weir/internal/upkeep"
)

// bfdSupervisor gives the BFD process the sessions that match what the kernel has.
type bfdSupervisor struct {
	*bfd.Supervisor

	seen atomic.Uint64 // faults of the process

	mu         sync.Mutex
	config     model.Config
	routers    map[string]netip.Addr // that are known by their interface
	wanted     []model.BFDSession    // by the configuration
	interfaces []string              // that the program is attached to, or is about to be
	admitted   bool                  // the program is attached
	restarts   uint64                // of the process, that were told
}

func newBFDSupervisor(deps Deps, report func(model.BFDStatus)) *bfdSupervisor {
	socket := bfd.Socket(deps.Socket)
	var starts bfdStarts
	start := func() (<-chan error, error) {
		if err := starts.allow(time.Now()); err != nil {
			return nil, err
		}
		endOldBFD(filepath.Join(filepath.Dir(deps.Socket), "bfd.sock"), socket, deps.Log)
		return startBFD(append(slices.Clone(deps.BFD), "--socket", socket))
	}
	return &bfdSupervisor{Supervisor: bfd.NewSupervisor(socket, start, report, deps.Log)}
}

// endOldBFD ends a process of a version in which all directors with sockets in one directory shared
// one: it holds the ports that a new process needs. To routers that is no failure.
func endOldBFD(shared, own string, log *slog.Logger) {
	if shared == own {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	status, err := bfd.Query(ctx, shared)
	if err != nil || status.Socket != "" {
		return // there is none, or it is the director's whose socket is director.sock
	}
	log.Warn("the BFD process of an older version is ended, which several directors may have had together", "version", status.Version, "pid", status.PID)
	if err := bfd.Stop(shared); err != nil {
		log.Error("the BFD process of an older version does not end", "error", err)
	}
}

// startBFD starts a process that outlives this one: in a session of its own, so that no signal for
// this process reaches it, and with only the capabilities that it needs.
func startBFD(args []string) (ended <-chan error, err error) {
	cmd := exec.Command(thisProgram(), args...)
	cmd.Stderr, cmd.Env = os.Stderr, privilege.Environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, AmbientCaps: privilege.HandOn(privilege.BFD)}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	over := make(chan error, 1)
	go func() {
		if err := cmd.Wait(); err != nil {
			over <- err
			return
		}
		over <- errors.New("exit status 0")
	}()
	return over, nil
}

// thisProgram is the path of the program that runs. It may have been removed or replaced since it
// began, and the BFD process has to be of the same version: then the kernel's own link leads to it,
// and only the process's name is another one.
func thisProgram() string {
	const link = "/proc/self/exe"
	path, err := os.Executable()
	if err != nil {
		return link
	}
	there, err := os.Stat(path)
	running, other := os.Stat(link)
	if err == nil && other == nil && os.SameFile(there, running) {
		return path
	}
	return link
}

// configure takes the neighbors of a configuration.
func (s *bfdSupervisor) configure(c *model.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config = *c
	s.renew()
}

// setRouters takes the routers at the other ends of interfaces.
func (s *bfdSupervisor) setRouters(routers map[string]netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routers = routers
	s.renew()
}

// renew sets the sessions that the configuration and the found routers ask for. The mutex is held.
func (s *bfdSupervisor) renew() {
	s.wanted = s.config.BFDSessions(s.routers)
	if s.interfaces != nil {
		s.set(s.interfaces)
	}
}

// Sessions returns the status of all wanted sessions. For sessions that the process does not know,
// or while it says nothing, only their neighbors are known, and why there is nothing more.
func (s *bfdSupervisor) Sessions() []model.BFDSessionStatus {
	status, err := s.Status()
	return s.sessionsOf(&status, err)
}

// sessionsOf is Sessions by what the process says, or why it says nothing.
func (s *bfdSupervisor) sessionsOf(status *model.BFDStatus, err error) []model.BFDSessionStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sessions []model.BFDSessionStatus
	for i := range s.wanted {
		w := &s.wanted[i]
		one := model.BFDSessionStatus{Neighbor: w.Neighbor, VRF: w.VRF, Source: w.Source, Multihop: w.Multihop}
		if err != nil {
			one.Problem = err.Error()
		}
		for _, session := range status.Sessions {
			if session.For(w) {
				one = session
				one.Problem = cmp.Or(missingFeature(w, &session, status), session.Problem)
			}
		}
		if err == nil && w.VRF != "" && !status.VRFs {
			one.Problem = unknownTo(status, "vrf")
		}
		sessions = append(sessions, one)
	}
	return sessions
}

// View returns the status of BFD; nil if it is not configured.
func (s *bfdSupervisor) View() *model.BFDStatus {
	sessions := s.Sessions()
	if len(sessions) == 0 {
		return nil
	}
	status, err := s.Status()
	if status.Sessions = sessions; err != nil {
		status.Problem = err.Error()
	}
	return &status
}

// newFault returns what was wrong with the process since the last call, if anything was: it may be
// over before the next look.
func (s *bfdSupervisor) newFault() string {
	n, last := s.Faults()
	if s.seen.Swap(n) == n {
		return ""
	}
	return last
}

// missingFeature says which request a process does not fulfill because it is of an older version: the
// process goes on when weir run is replaced.
func missingFeature(want *model.BFDSession, has *model.BFDSessionStatus, process *model.BFDStatus) string {
	lacking := ""
	switch {
	case want.Authentication != nil && has.Authentication != want.Authentication.Type:
		lacking = "authentication"
	case want.TTLSecurity != has.TTLSecurity:
		lacking = "ttl-security"
	default:
		return ""
	}
	return unknownTo(process, lacking)
}

// unknownTo says that a process of an older version runs.
func unknownTo(process *model.BFDStatus, feature string) string {
	return fmt.Sprintf("the weir bfd that runs (version %s, process %d) does not know %s: end it by SIGTERM, and weir run starts its own", process.Version, process.PID, feature)
}

// beforeSet makes the sessions stand for only those interfaces that have the program and will keep it:
// the others are about to lose it, and that is no failure.
func (s *bfdSupervisor) beforeSet(interfaces []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if both := common(s.interfaces, interfaces); len(both) > 0 && len(both) < len(s.interfaces) {
		s.set(both)
	}
}

// afterSet makes the sessions stand for the interfaces that have the program now.
func (s *bfdSupervisor) afterSet(interfaces []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interfaces = interfaces
	s.set(interfaces)
}

// admit says that the program is attached to the interfaces of the last Set, and from now on to
// those of each. A director that starts on a host without the program fills its maps first: until
// then a session would stand for a datapath that is not there, be down for that, and tell its
// router, and the router and BGP here would wait a second before they look again.
func (s *bfdSupervisor) admit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admitted = true
	if s.interfaces != nil {
		s.set(s.interfaces)
	}
}

// set sets the sessions of the BFD process, if the program gets packets. A session that has only other
// interfaces keeps them: it is down, and says so.
func (s *bfdSupervisor) set(interfaces []string) {
	if !s.admitted {
		return
	}
	sessions := slices.Clone(s.wanted)
	for i := range sessions {
		if kept := common(sessions[i].Interfaces, interfaces); len(kept) > 0 {
			sessions[i].Interfaces = kept
		}
	}
	s.Set(sessions)
}

// common returns the elements of a that are in b, too.
func common(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(name string) bool { return !slices.Contains(b, name) })
}

// A BFD process that ends again and again is restarted as often as a part of the host is repaired.
const bfdMost, bfdWindow = upkeep.Most + 1, upkeep.Window

// bfdStarts allows that many starts of a process.
type bfdStarts struct{ at []time.Time }

func (s *bfdStarts) allow(now time.Time) error {
	for len(s.at) > 0 && now.Sub(s.at[0]) >= bfdWindow {
		s.at = s.at[1:]
	}
	if len(s.at) >= bfdMost {
		return fmt.Errorf("it has ended %d times within %v: it is left alone until a minute has passed", len(s.at), bfdWindow)
	}
	s.at = append(s.at, now)
	return nil
}

// look says once that the process was started again. If it is not there, that is a problem of kind
// bfd.
func (s *bfdSupervisor) look() ([]upkeep.Difference, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := s.Restarts()
	switch {
	case len(s.wanted) == 0 || !s.admitted:
		s.restarts = again
	case again != s.restarts:
		s.restarts = again
		return []upkeep.Difference{{What: "process", Found: "had ended", Repair: func() error { return nil }}}, nil
	}
	return nil, nil
}
