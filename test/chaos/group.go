package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/process"
	"weir.io/weir/test/chaos/schedule"
)

// group is the weir processes of a run.
type group struct {
	told
	top       *topology
	mode      mode
	retention time.Duration
	binaries  binaries
	store     *sharedStore // nil: each director has the services in its file
	alone     bool         // directors do not tell each other of flows
	steer     bool         // directors have NICs that steer flows
	tiers     bool         // backends are in two tiers

	agentConfig model.Config    // of every agent
	agents      []*process.Weir // by backend; nil: being replaced
	client      *process.Weir   // the client's agent; nil: none, or being replaced
	seeded      bool            // the store has a set
	running     []*process.Weir // by director; nil: none, or being ended
}

func newGroup(top *topology, m mode, retention time.Duration, weir binaries, store *sharedStore, first schedule.Group) *group {
	return &group{told: newTold(first), top: top, mode: m, retention: retention, binaries: weir, store: store, running: make([]*process.Weir, len(top.directors))}
}

func (g *group) sources() []netip.Prefix {
	var list []netip.Prefix
	for i := range g.top.directors {
		list = append(list, netip.PrefixFrom(lanAddress(directors+i), 32))
	}
	return list
}

func (g *group) directorConfig(i int, of schedule.Group) model.Config {
	c := model.Config{Directors: g.sources()}
	if g.store != nil {
		c.Director.Store.Etcd.Endpoints = g.store.endpoints
		for other := range g.top.directors {
			c.Director.Group = append(c.Director.Group, lanAddress(directors+other))
		}
		if g.alone {
			c.Director.FlowPort = new(uint16)
		}
	} else {
		c.Services = g.services(of)
	}
	c.Director.Interfaces = []string{"eth0", "eth1"}
	if g.steer {
		c.Director.Steering = steering()
	}
	c.Director.TunnelSource = []netip.Prefix{netip.PrefixFrom(lanAddress(directors+i), 32)}
	if g.mode.snat {
		c.Director.SNAT = model.SNAT{Addresses: []netip.Addr{lanAddress(snatHost + i)}, Announce: true}
		c.Director.Neighbor = model.Neighbor{Lease: model.Duration(model.MinNeighborLease), Interfaces: []model.NeighborInterface{{Name: "eth1"}}}
	}
	return c
}

// start starts a director with the current configuration, and waits until it forwards.
func (g *group) start(ctx context.Context, i int, v schedule.Version) error {
	w, err := g.launch(i, v)
	if err != nil {
		return err
	}
	if err := w.Runs(ctx); err != nil {
		return err
	}
	if err := g.seed(ctx); err != nil {
		return err
	}
	return w.Await(ctx, "forward", func() error {
		err := g.forwards(ctx, w)
		if err != nil {
			sleep(ctx, pollPause) // the directors need the CPU more
		}
		return err
	})
}

// pollPause is the pause between two questions to a director.
const pollPause = 20 * time.Millisecond

// launch starts the process. From then on it is told of changes.
func (g *group) launch(i int, v schedule.Version) (*process.Weir, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w, err := process.StartDirectorAs(g.top.directors[i].Host, g.binaries[v], g.directorConfig(i, g.now))
	if err == nil {
		g.running[i] = w
	}
	return w, err
}

// take returns a director's process to end it: ended no longer expects it to run.
func (g *group) take(i int) *process.Weir {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.running[i]
	g.running[i] = nil
	return w
}

// forwards returns an error that names an active backend to which a director does not forward.
func (g *group) forwards(ctx context.Context, w *process.Weir) error {
	list, err := api.NewClient(w.Socket).Backends(ctx)
	if err != nil {
		return err
	}
	for i, b := range g.current().Backends {
		name := backendName(i)
		at := slices.IndexFunc(list, func(s api.Backend) bool { return s.Name == name })
		if b.State != schedule.Absent && at < 0 {
			return fmt.Errorf("%s is not there", name)
		}
		fails := g.tiers && g.current().TierFailed && schedule.Tier(i) == 0
		if b.State == schedule.Active && !fails && !list[at].State.Alive() {
			return fmt.Errorf("%s is down", name)
		}
		if b.State == schedule.Active && g.mode.redirects && !slices.ContainsFunc(list, func(s api.Backend) bool {
			return s.Name == name && s.Redirect != nil && s.Redirect.Able
		}) {
			return fmt.Errorf("%s is not known to redirect", name)
		}
	}
	return nil
}

// apply tells every running director the new state: through the store, or by one file right after
// the other.
func (g *group) apply(ctx context.Context, now schedule.Group) error {
	g.mu.Lock()
	g.now = now
	g.history = append(g.history, configuration{time.Now(), now})
	if g.store == nil {
		defer g.mu.Unlock()
		return g.write(now)
	}
	g.mu.Unlock()
	return g.put(ctx, now)
}

// runs returns the directors that run at this moment.
func (g *group) runs() (list []*process.Weir) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.running {
		if w != nil {
			list = append(list, w)
		}
	}
	return list
}

func (g *group) write(now schedule.Group) error {
	for i, w := range g.running {
		if w != nil {
			if err := w.Prepare(g.directorConfig(i, now)); err != nil {
				return err
			}
		}
	}
	for _, w := range g.running {
		if w != nil {
			if err := w.Commit(); err != nil {
				return err
			}
		}
	}
	return nil
}

// directorSockets returns the sockets of the running directors, by name.
func (g *group) directorSockets() map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return socketsOf(g.running)
}

func socketsOf(list []*process.Weir) map[string]string {
	sockets := map[string]string{}
	for _, w := range list {
		if w != nil {
			sockets[w.Host.Name] = w.Socket
		}
	}
	return sockets
}

// stop ends a director's process, and removes what it left in the kernel.
func (g *group) stop(ctx context.Context, i int, killed bool) error {
	w := g.take(i)
	if err := end(w, killed); err != nil {
		return err
	}
	d := g.top.directors[i].Host
	_, err := process.Run(ctx, d, g.binaries[schedule.This], "detach", "--bpffs", d.BPFFS(), "--socket", w.Socket)
	return err
}

// again ends a director's process and starts it again; what it left in the kernel keeps working.
func (g *group) again(ctx context.Context, i int, v schedule.Version, killed bool) error {
	if err := end(g.take(i), killed); err != nil {
		return err
	}
	return g.start(ctx, i, v)
}

func end(w *process.Weir, killed bool) error {
	if killed {
		return w.Kill()
	}
	return w.Stop()
}

// ended returns an error if a process is gone that the run did not end.
func (g *group) ended() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, w := range slices.Concat(g.running, g.agents, []*process.Weir{g.client}) {
		if w != nil {
			errs = append(errs, w.Ended())
		}
	}
	return errors.Join(errs...)
}
