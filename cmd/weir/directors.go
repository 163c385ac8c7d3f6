package main

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// presence tells a group what this director runs.
type presence struct {
	group    *store.Etcd // nil: there is no group to tell
	run      func() model.DirectorRun
	settings func() store.Settings

	mu      sync.Mutex
	own     []netip.Addr
	stop    context.CancelFunc
	running sync.WaitGroup
}

// set sets the addresses by which the group knows this director.
func (p *presence) set(d model.Director) error {
	if p.group == nil {
		return nil
	}
	own, _, err := divideGroup(d.Group)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Equal(own, p.own) {
		return nil
	}
	p.end()
	ctx, cancel := context.WithCancel(context.Background())
	p.own, p.stop = own, cancel
	if len(own) > 0 {
		p.running.Go(func() {
			p.group.KeepRun(ctx, own, func() (model.DirectorRun, store.Settings) { return p.run(), p.settings() })
		})
	}
	return nil
}

func (p *presence) end() {
	if p.stop != nil {
		p.stop()
	}
	p.running.Wait()
}

func (p *presence) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
}

// directors returns what the directors of the group say about themselves, including this one: about
// itself it says what it knows now.
func (p *presence) directors(ctx context.Context) ([]model.DirectorRun, error) {
	self := p.run()
	self.Self = true
	p.mu.Lock()
	own := slices.Clone(p.own)
	p.mu.Unlock()
	if len(own) > 0 {
		self.Address = own[0]
	}
	all := []model.DirectorRun{self}
	if p.group == nil {
		return all, nil
	}
	others, err := p.group.Runs(ctx)
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

// grouped is the configuration by which the director is in its group.
type grouped struct {
	sync.Mutex
	as model.Director
}

// joinGroup lets the group know the director by those of its addresses that this host has now.
func (d *director) joinGroup(c model.Director) {
	d.grouped.Lock()
	defer d.grouped.Unlock()
	d.grouped.as = c
	d.joinAs(c)
}

// joinGroupAgain does so when this host may have other addresses. A director without one stays in the
// group by those that it had, which may come back.
func (d *director) joinGroupAgain() {
	d.grouped.Lock()
	defer d.grouped.Unlock()
	if own, _, err := divideGroup(d.grouped.as.Group); err != nil || len(own) == 0 {
		return // the examination of the host says so
	}
	d.joinAs(d.grouped.as)
}

// joinAs joins the group by a configuration. The mutex of grouped is held.
func (d *director) joinAs(c model.Director) {
	d.problems.Report(model.ProblemGroup, "", errors.Join(d.shares.set(c), d.presence.set(c)))
}

// whatRuns is what this director says about itself.
func (d *director) whatRuns() model.DirectorRun {
	info := d.Info()
	return model.DirectorRun{Version: info.Version, Started: info.Started.UTC(), Revision: d.keeper.Sets().Revision,
		Services: len(d.Config().Services), Refused: info.Refused}
}

// settings returns a function that says what the other directors compare with their own. It is asked
// every second, and makes fingerprints only when the file has changed.
func (d *director) settings() func() store.Settings {
	var of []model.Service
	var known map[string]string
	return func() store.Settings {
		file := d.keeper.File()
		if len(file.Services) == 0 || len(of) == 0 || &file.Services[0] != &of[0] {
			known, of = store.PlacingOf(file.Services), file.Services
		}
		return store.SettingsOf(&file, known)
	}
}

func newDirectors() *cobra.Command {
	var out output
	var conn connection
	cmd := &cobra.Command{
		Use:   "directors",
		Short: "List the directors of a group, and what each runs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			client, err := conn.client()
			if err != nil {
				return err
			}
			directors, err := client.Directors(cmd.Context())
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), directors, func(t *table) { directorsTable(t, directors) })
		},
	}
	out.add(cmd)
	conn.add(cmd)
	return cmd
}

func directorsTable(t *table, directors []model.DirectorRun) {
	t.row("DIRECTOR", "VERSION", "SINCE", "REVISION", "SERVICES", "REFUSED")
	for _, d := range directors {
		name := "this one"
		switch {
		case d.Address.IsValid() && d.Self:
			name = d.Address.String() + " (this one)"
		case d.Address.IsValid():
			name = d.Address.String()
		}
		t.row(name, d.Version, d.Started.Format(time.RFC3339), d.Revision, d.Services, d.Refused)
	}
}
