package engine

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"weir.io/weir/internal/model"
)

// lost are the VIPs to whose backends there is no way yet.
type lost struct {
	mu   sync.Mutex
	vips map[netip.Addr]bool
}

func (l *lost) Unreached() map[netip.Addr]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.vips
}

func (l *lost) are(vips ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.vips = map[netip.Addr]bool{}
	for _, vip := range vips {
		l.vips[netip.MustParseAddr(vip)] = true
	}
}

// A new VIP is told when its backends have ways, or after it has waited for long enough.
// A VIP that is told already does not wait, and the first time all are told at once.
func TestNewRoutesWaitForWays(t *testing.T) {
	const a, b, c = "203.0.113.1", "203.0.113.2", "203.0.114.1"
	up := func(vips ...string) model.Config {
		var services []model.Service
		for _, vip := range vips {
			services = append(services, at(vip, model.Active))
		}
		config := announcing(services...)
		config.BGP.Prefixes = []model.BGPPrefix{{Prefix: netip.MustParsePrefix("203.0.114.0/24"), Announce: model.AnnouncePrefix}}
		return config
	}
	tells := func(vips ...string) string {
		for i, vip := range vips {
			if vips[i] += "/32"; vip == c {
				vips[i] = "203.0.114.0/24"
			}
		}
		return "tell 1: " + strings.Join(vips, " ")
	}
	run := func(name string, test func(e *Engine, l *lost, want func(when string, last ...string))) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, l := &sinks{}, &lost{}
				e := New(Deps{Forwarder: forwards{s}, Ways: l, Log: slog.New(slog.DiscardHandler)})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go e.Run(ctx)
				test(e, l, func(when string, last ...string) {
					t.Helper()
					synctest.Wait()
					s.mu.Lock()
					defer s.mu.Unlock()
					said := slices.DeleteFunc(s.said, func(text string) bool { return !strings.HasPrefix(text, "tell") })
					if !slices.Equal(said, last) {
						t.Errorf("%s the announcer was set to %q, want %q", when, said, last)
					}
					s.said = nil
				})
				cancel()
			})
		})
	}
	apply := func(e *Engine, config model.Config) { _ = e.Apply(config, nil) }

	run("at the start", func(e *Engine, l *lost, want func(string, ...string)) {
		l.are(b)
		apply(e, up(a, b))
		e.Announce(announces{e.forwarder.(forwards).sinks})
		pass(waysPatience / 2)
		want("with a way to one of two VIPs")
		l.are()
		pass(waysPatience / 2)
		want("with both ways", tells(a, b))
	})
	run("a VIP that comes", func(e *Engine, l *lost, want func(string, ...string)) {
		apply(e, up(a))
		e.Announce(announces{e.forwarder.(forwards).sinks})
		want("at first", tells(a))
		l.are(a, b, c)
		apply(e, up(a, b, c))
		want("with two more", tells(a))
		l.are(a, c)
		pass(waysPatience / 4)
		want("with the way to one", tells(a, b))
		apply(e, up(a, b, c))
		want("when it is applied again", tells(a, b))
		pass(waysPatience)
		want("after a second", tells(a, b, c))
		apply(e, up(a, b, c))
		want("with the ways still lost", tells(a, b, c))
	})
	run("a VIP that goes", func(e *Engine, l *lost, want func(string, ...string)) {
		apply(e, up(a))
		e.Announce(announces{e.forwarder.(forwards).sinks})
		l.are(b)
		apply(e, up(a, b))
		want("with the second one", tells(a), tells(a))
		sink := e.forwarder.(forwards).sinks
		sink.mu.Lock()
		sink.fail = errFull
		sink.mu.Unlock()
		apply(e, up(a))
		l.are()
		pass(waysPatience)
		want("with it taken out while it waited", tells(a))
	})
}

// witness notes how many services are said to run while it is asked for ways.
type witness struct {
	engine   *Engine
	services []int
}

func (w *witness) Unreached() map[netip.Addr]bool {
	w.services = append(w.services, len(w.engine.Desired().Services))
	return nil
}

// A plan that a sink has taken is reported to run before the engine waits for the sink
// again: a reader gets the state and the report of one plan.
func TestWhatRunsIsSaidFirst(t *testing.T) {
	w := &witness{}
	e := New(Deps{Forwarder: forwards{&sinks{}}, Ways: w, Log: slog.New(slog.DiscardHandler)})
	w.engine = e
	go e.Run(t.Context())
	for _, vips := range [][]string{{"203.0.113.1"}, {"203.0.113.1", "203.0.113.2"}} {
		var services []model.Service
		for _, vip := range vips {
			services = append(services, at(vip, model.Active))
		}
		if err := e.Apply(announcing(services...), nil); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(w.services, []int{1, 2}) {
		t.Errorf("while ways were asked for, %v services were said to run, want those of each plan", w.services)
	}
}
