package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// resetsRemembered is how long a flow that its client has reset counts as reset.
const resetsRemembered = time.Minute

// watch looks at services that change, and says when they are worse than before by more than its
// limits.
type watch struct {
	time     time.Duration // how long services are watched after a step
	patience time.Duration // how long it waits until all is known
	every    time.Duration
	failing  int     // additional backends that fail their probes
	resets   float64 // additional connections per second that are refused or reset
	dropped  float64 // additional packets per second that no backend gets

	saw func(text string) // is called with the result of each look; nil: nobody reads it

	services map[string]bool
	revision uint64 // that the group's directors should follow
	first    reading
	drops    float64 // per second, before the step
	last     reading
}

func (w *watch) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&w.time, "watch", 0, "look at the services for this `time` after each step, and return to the previous set when a limit is exceeded; with --steps at least 10s unless it is given")
	cmd.Flags().IntVar(&w.failing, "max-failing", 0, "with --watch: return when more `backends` than this fail their probes that did not before")
	cmd.Flags().Float64Var(&w.resets, "max-resets", 1, "with --watch: return when this `many` connections more in a second are refused or reset")
	cmd.Flags().Float64Var(&w.dropped, "max-dropped", 10, "with --watch: return when this `many` packets more in a second are dropped")
}

// check refuses limits that have no meaning.
func (w *watch) check() error {
	switch {
	case w.time < 0:
		return usagef("--watch %v is less than nothing", w.time)
	case w.failing < 0 || w.resets < 0 || w.dropped < 0:
		return usagef("--max-failing, --max-resets and --max-dropped are at least 0")
	}
	return nil
}

// reading is the state of services at a moment.
type reading struct {
	at      time.Time
	failing []string               // backends, with why
	unknown []string               // backends that are checked, and whose result is not known yet
	coming  []string               // services whose slots have not moved yet
	behind  []string               // directors of the group that do not follow the step yet
	refused []string               // directors that do not run what is asked for, with the reason
	resets  float64                // per second
	told    map[netip.Addr]float64 // which of these other directors count
	dropped uint64
}

// start reads the state of the services that a plan changes.
func (w *watch) start(ctx context.Context, client *api.Client, plan *api.Plan) error {
	w.services = map[string]bool{}
	for i := range plan.Services {
		w.services[plan.Services[i].Service] = true
	}
	var err error
	if w.first, err = w.read(ctx, client); err != nil {
		return err
	}
	if err = pause(ctx, w.every); err != nil {
		return err
	}
	before := w.first
	if w.first, err = w.read(ctx, client); err != nil {
		return err
	}
	w.drops = w.first.dropsSince(before)
	w.last = w.first
	return nil
}

func (w *watch) read(ctx context.Context, client *api.Client) (r reading, err error) {
	services, err := client.Services(ctx)
	if err != nil {
		return r, err
	}
	r = w.readingOf(services, time.Now())
	directors, err := client.Directors(ctx)
	if errors.As(err, new(*api.Problem)) {
		return r, nil // the group's etcd does not answer: nothing is known about the others
	}
	r.addDirectors(directors, w.revision)
	return r, err
}

// addDirectors notes which directors of the group do not follow a revision.
func (r *reading) addDirectors(directors []model.DirectorRun, revision uint64) {
	for i := range directors {
		d := &directors[i]
		name := "this director"
		if d.Address.IsValid() {
			name = "director " + d.Address.String()
		}
		switch {
		case d.Refused != "":
			r.refused = append(r.refused, name+" does not run what is asked for: "+d.Refused)
		case d.Revision < revision:
			r.behind = append(r.behind, name)
		}
	}
}

func (w *watch) readingOf(services []model.ServiceStatus, now time.Time) reading {
	r := reading{at: now, told: map[netip.Addr]float64{}}
	for i := range services {
		s := &services[i]
		if !w.services[s.Name] {
			continue
		}
		r.dropped += s.Dropped
		r.resets += float64(s.Reset) / resetsRemembered.Seconds()
		for _, t := range s.ResetsShared {
			r.told[t.Director] += float64(t.Flows) / resetsRemembered.Seconds()
		}
		if s.Log.Coming > 0 {
			r.coming = append(r.coming, s.Name)
		}
		for j := range s.Backends {
			b := &s.Backends[j]
			if b.Strain != nil {
				r.resets += b.Strain.Refused + b.Strain.Overflows
			}
			if b.Health == nil {
				continue
			}
			switch name := s.Name + "/" + b.Name; b.Health.State {
			case model.HealthDown:
				r.failing = append(r.failing, name)
			case model.HealthUp:
			default:
				r.unknown = append(r.unknown, name)
			}
		}
	}
	return r
}

// dropsSince returns how many packets were dropped per second since an earlier reading. A removed
// service took its count along.
func (r *reading) dropsSince(before reading) float64 {
	seconds := r.at.Sub(before.at).Seconds()
	if seconds <= 0 || r.dropped < before.dropped {
		return 0
	}
	return float64(r.dropped-before.dropped) / seconds
}

// worse is what has become worse than before: backends that fail their probes, and per second
// connections that are refused or reset, and packets that are dropped.
func (w *watch) worse(now reading) (failing []string, resets, dropped float64) {
	for _, b := range now.failing {
		if !slices.Contains(w.first.failing, b) {
			failing = append(failing, b)
		}
	}
	return failing, now.resets - w.first.resets, now.dropsSince(w.last) - w.drops
}

// judge says what is worse than before by more than the limits; nil: nothing.
func (w *watch) judge(now reading) error {
	for _, why := range now.refused {
		if !slices.Contains(w.first.refused, why) {
			return errors.New(why)
		}
	}
	failing, resets, dropped := w.worse(now)
	if w.saw != nil {
		w.saw(fmt.Sprintf("more than before: %d backends fail, %.1f connections/s are refused or reset, %.1f packets/s are dropped", len(failing), max(0, resets), max(0, dropped)))
	}
	switch {
	case len(failing) > w.failing:
		return fmt.Errorf("%s fail their probes, which did not before: more than %d", model.Some(failing), w.failing)
	case resets > w.resets:
		return fmt.Errorf("%.1f connections in a second are refused or reset more than before: more than %g%s", resets, w.resets, w.reporters(now))
	case dropped > w.dropped:
		return fmt.Errorf("%.1f packets in a second are dropped more than before: more than %g", dropped, w.dropped)
	}
	return nil
}

// reporters says which other directors count more resets than before; their counts are believed.
func (w *watch) reporters(now reading) string {
	var list []string
	for _, director := range slices.SortedFunc(maps.Keys(now.told), netip.Addr.Compare) {
		if more := now.told[director] - w.first.told[director]; more > 0 {
			list = append(list, fmt.Sprintf("%.1f by director %s", more, director))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "; of these are counted " + model.Some(list)
}

// look looks at the services until their state is known and the time is over, or until they are
// worse than the limits allow.
func (w *watch) look(ctx context.Context, client *api.Client) error {
	from := time.Now()
	var silent time.Time // since when the director does not answer
	for {
		if err := pause(ctx, w.every); err != nil {
			return err
		}
		now, err := w.read(ctx, client)
		if err != nil {
			if silent.IsZero() {
				silent = time.Now()
			}
			if ctx.Err() != nil || time.Since(silent) > w.patience {
				return err
			}
			continue
		}
		silent = time.Time{}
		if err := w.judge(now); err != nil {
			return err
		}
		w.last = now
		passed := time.Since(from)
		waits := slices.Concat(now.unknown, now.coming, now.behind)
		switch {
		case len(waits) == 0 && passed >= w.time:
			return nil
		case passed > w.time+w.patience:
			return fmt.Errorf("after %v it is not known how %s goes", w.patience, model.Some(waits))
		}
	}
}

// pause waits, unless it is interrupted.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("interrupted: %w", ctx.Err())
	}
}
