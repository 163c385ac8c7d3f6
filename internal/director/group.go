package director

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/flowsync"
	"weir.io/weir/internal/group"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
)

// membership is this director's part in its group. Directors know each other by the group's etcd: a
// director without one shares nothing.
type membership struct {
	etcd  *group.Group // nil: there is none, and no sync
	sync  *flowsync.Sync
	about func() model.DirectorRun // what this director runs
	list  *problems.List
	log   *slog.Logger

	// What etcd has about this director.
	fingerprint, run registration

	mu   sync.Mutex
	as   model.Director // the configuration by which the director is in the group
	said bool
}

func newMembership(ctx context.Context, kernel *datapath.Datapath, etcd *group.Group, about func() model.DirectorRun, settings func() group.Settings, list *problems.List, log *slog.Logger) (*membership, error) {
	m := &membership{etcd: etcd, about: about, list: list, log: log}
	if etcd == nil {
		return m, nil
	}
	var err error
	if m.sync, err = flowsync.New(kernel, etcd.FollowFingerprints(ctx), log); err != nil {
		return nil, err
	}
	m.fingerprint.keep = func(ctx context.Context, own []netip.Addr) { etcd.KeepFingerprint(ctx, own, m.sync.Fingerprint()) }
	m.run.keep = func(ctx context.Context, own []netip.Addr) {
		etcd.KeepRun(ctx, own, func() (model.DirectorRun, group.Settings) { return about(), settings() })
	}
	return m, nil
}

// shareFlows lets the group's directors share the flows that they remember.
func (m *membership) shareFlows(c model.Director) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.joinAs(c, false)
}

// join also lets the group know what the director runs, by those of its addresses that this host has
// now. It lists why the director cannot join the group. The lock is held until then: an earlier attempt
// must not be listed after a later one.
func (m *membership) join(c model.Director) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.as = c
	m.list.Report(model.ProblemGroup, "", m.joinAs(c, true))
}

// joinAgain does so when this host may have other addresses. A director without one stays in the group
// by those that it had, which may come back: nothing is tried then, and what is listed stays.
func (m *membership) joinAgain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if own, _, err := DivideGroup(m.as.Group); err == nil && len(own) == 0 {
		return // the examination of the host says so
	}
	m.list.Report(model.ProblemGroup, "", m.joinAs(m.as, true))
}

func (m *membership) joinAs(c model.Director, runs bool) error {
	port := c.FlowPortOrDefault()
	if m.etcd == nil {
		if len(c.Group) > 1 && port != 0 && !m.said {
			m.said = true
			m.log.Info("what is remembered of flows is not shared with the group: director.store has no etcd")
		}
		return nil
	}
	own, others, err := DivideGroup(c.Group)
	if err != nil {
		return err
	}
	if runs {
		m.run.set(own)
	}
	if len(others) == 0 || port == 0 {
		own = nil
	}
	m.sync.Set(own, others, port)
	m.fingerprint.set(own)
	return nil
}

// await gives the other directors time to share the flows that they remember.
func (m *membership) await(ctx context.Context, patience time.Duration) {
	if m.sync == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if missing := m.sync.Await(ctx); len(missing) > 0 {
		m.log.Warn("directors of the group have not shared yet what they remember of flows", "directors", missing)
	}
}

func (m *membership) status() (peers []model.PeerStatus, strangers uint64) {
	if m.sync == nil {
		return nil, 0
	}
	return m.sync.Status(), m.sync.Strangers()
}

// problem says why directors of the group cannot share flows with this one.
func (m *membership) problem() error {
	if m.sync == nil {
		return nil
	}
	return m.sync.Problem()
}

func (m *membership) close() {
	m.run.set(nil)
	m.fingerprint.set(nil)
	if m.sync != nil {
		m.sync.Close()
	}
}

// registration keeps something in etcd under this director's addresses.
type registration struct {
	keep func(ctx context.Context, own []netip.Addr)

	mu      sync.Mutex
	own     []netip.Addr
	stop    context.CancelFunc
	running sync.WaitGroup
}

// set sets the addresses; without one, nothing is kept.
func (r *registration) set(own []netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Equal(own, r.own) {
		return
	}
	if len(r.own) > 0 {
		r.stop()
		r.running.Wait()
	}
	r.own = own
	if len(own) > 0 {
		ctx, cancel := context.WithCancel(context.Background())
		r.stop = cancel
		r.running.Go(func() { r.keep(ctx, own) })
	}
}

func (r *registration) addresses() []netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.own
}

// directors returns what the directors of the group say about themselves, including this one: about
// itself it says what it knows now.
func (m *membership) directors(ctx context.Context) ([]model.DirectorRun, error) {
	self := m.about()
	self.Self = true
	own := m.run.addresses()
	if len(own) > 0 {
		self.Address = own[0]
	}
	all := []model.DirectorRun{self}
	if m.etcd == nil {
		return all, nil
	}
	others, err := m.etcd.Runs(ctx)
	if err != nil {
		return nil, api.NewProblem(http.StatusServiceUnavailable, "ask for the group's directors: "+err.Error())
	}
	for _, d := range others {
		if !slices.Contains(own, d.Address) {
			all = append(all, d)
		}
	}
	slices.SortStableFunc(all, func(a, b model.DirectorRun) int { return a.Address.Compare(b.Address) })
	return all, nil
}

// whatRuns is what this director says about itself.
func (d *Director) whatRuns() model.DirectorRun {
	info := d.Info()
	return model.DirectorRun{Version: info.Version, Started: info.Started.UTC(), Revision: d.controller.Sets().Revision,
		Services: len(d.Config().Services), Refused: info.Refused}
}

// settings returns a function that says what the other directors compare with their own. It is asked
// every second, and makes fingerprints only when the file has changed.
func (d *Director) settings() func() group.Settings {
	var of []model.Service
	var known map[string]string
	return func() group.Settings {
		file := d.controller.File()
		if len(file.Services) == 0 || len(of) == 0 || &file.Services[0] != &of[0] {
			known, of = group.PlacingOf(file.Services), file.Services
		}
		return group.SettingsOf(&file, known)
	}
}

// DivideGroup says which of the group's addresses are this host's.
func DivideGroup(group []netip.Addr) (own, others []netip.Addr, err error) {
	here, err := net.InterfaceAddrs()
	if err != nil {
		return nil, nil, fmt.Errorf("look for this host's addresses: %w", err)
	}
	for _, a := range group {
		mine := slices.ContainsFunc(here, func(at net.Addr) bool {
			prefix, err := netip.ParsePrefix(at.String())
			return err == nil && prefix.Addr() == a
		})
		if mine {
			own = append(own, a)
		} else {
			others = append(others, a)
		}
	}
	return own, others, nil
}
