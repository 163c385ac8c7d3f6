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
	"time"

	"weir.io/weir/internal/model"
)

// lost are the VIPs to whose backends there is no way yet.
type lost struct {
	mu   sync.Mutex
	vips map[model.VIP]bool
}

func (l *lost) Unreached() map[model.VIP]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.vips
}

func (l *lost) are(vips ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.vips = map[model.VIP]bool{}
	for _, vip := range vips {
		l.vips[model.Untagged(netip.MustParseAddr(vip))] = true
	}
}

// runWaiting tests which VIPs an engine tells: want says what the announcer was set to since the last
// one.
func runWaiting(t *testing.T, name string, test func(e *Engine, l *lost, f *finder, want func(when string, last ...string))) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, l, f := &sinks{}, &lost{}, newFinder()
			e := New(Deps{Forwarder: forwards{s}, Ways: l, Checker: f, Log: slog.New(slog.DiscardHandler)})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go e.Run(ctx)
			test(e, l, f, func(when string, last ...string) {
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
	apply := func(e *Engine, config model.Config) { _ = e.Apply(config, nil) }

	runWaiting(t, "at the start", func(e *Engine, l *lost, _ *finder, want func(string, ...string)) {
		l.are(b)
		apply(e, up(a, b))
		e.Announce(announces{e.forwarder.(forwards).sinks})
		pass(waysPatience / 2)
		want("with a way to one of two VIPs")
		l.are()
		pass(waysPatience / 2)
		want("with both ways", tells(a, b))
	})
	runWaiting(t, "a VIP that comes", func(e *Engine, l *lost, _ *finder, want func(string, ...string)) {
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
	runWaiting(t, "a VIP that goes", func(e *Engine, l *lost, _ *finder, want func(string, ...string)) {
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

// A new VIP about whose backends nothing is known is told with the first result that leaves it up,
// not before one that shows it to be down.
func TestNewRoutesWaitForChecks(t *testing.T) {
	const a, b = "203.0.113.1", "203.0.113.2"
	checked := func(vip string, timeout time.Duration) model.Service {
		s := at(vip, model.Active)
		s.Health = &model.HealthCheck{Kind: model.CheckTCP, Timeout: model.Duration(timeout)}
		return s
	}
	begin := func(e *Engine, want func(string, ...string), more ...model.Service) {
		_ = e.Apply(announcing(at(a, model.Active)), nil)
		e.Announce(announces{e.forwarder.(forwards).sinks})
		want("at first", "tell 1: "+a+"/32")
		_ = e.Apply(announcing(append([]model.Service{at(a, model.Active)}, more...)...), nil)
		want("with a VIP of which nothing is known", "tell 1: "+a+"/32")
	}
	const both = "tell 1: " + a + "/32 " + b + "/32"
	s := checked(b, time.Second)

	runWaiting(t, "its backend is down", func(e *Engine, l *lost, f *finder, want func(string, ...string)) {
		l.are(b)
		begin(e, want, s)
		pass(time.Second)
		want("after the timeout of the check")
		f.find(targetOf(&s, 0), model.HealthDown)
		pass(healthSettle + time.Millisecond)
		want("when its backend is down", "tell 1: "+a+"/32")
		pass(time.Minute)
		want("later")
	})
	runWaiting(t, "its backend is up", func(e *Engine, _ *lost, f *finder, want func(string, ...string)) {
		begin(e, want, s)
		f.find(targetOf(&s, 0), model.HealthUp)
		pass(healthSettle + time.Millisecond)
		want("when its backend is up", both)
	})
	runWaiting(t, "another service of the VIP has no check", func(e *Engine, _ *lost, _ *finder, want func(string, ...string)) {
		other := at(b, model.Active)
		other.Name, other.Port = "other", model.PortRange{First: 81, Last: 81}
		_ = e.Apply(announcing(at(a, model.Active)), nil)
		e.Announce(announces{e.forwarder.(forwards).sinks})
		want("at first", "tell 1: "+a+"/32")
		_ = e.Apply(announcing(at(a, model.Active), s, other), nil)
		want("with the VIP", both)
	})
	runWaiting(t, "one of its backends is up, and the other not known", func(e *Engine, _ *lost, f *finder, want func(string, ...string)) {
		two := checked(b, time.Minute)
		two.Backends = web(2).Backends
		begin(e, want, two)
		f.find(targetOf(&two, 1), model.HealthUp)
		pass(healthSettle + time.Millisecond)
		want("when one is up", both)
	})
	runWaiting(t, "what the VIP has in a segment does not count", func(e *Engine, _ *lost, f *finder, want func(string, ...string)) {
		inSegment := at(b, model.Active)
		inSegment.Name, inSegment.Segment = "segment", model.Segment{Kind: model.SegmentVLAN, ID: 7}
		const tenants = " vlan:7/" + b + "/32"
		_ = e.Apply(announcing(at(a, model.Active)), nil)
		e.Announce(announces{e.forwarder.(forwards).sinks})
		want("at first", "tell 1: "+a+"/32")
		_ = e.Apply(announcing(at(a, model.Active), s, inSegment), nil)
		want("with the VIP, known in a segment only", "tell 1: "+a+"/32"+tenants)
		f.find(targetOf(&s, 0), model.HealthUp)
		pass(healthSettle + time.Millisecond)
		want("when its backend is up", both+tenants)
	})
	runWaiting(t, "a VIP in a segment waits, and the same address elsewhere does not", func(e *Engine, l *lost, f *finder, want func(string, ...string)) {
		tenants := checked(a, time.Second)
		tenants.Name, tenants.Segment = "segment", model.Segment{Kind: model.SegmentVLAN, ID: 7}
		begin(e, want, tenants)
		f.find(targetOf(&tenants, 0), model.HealthUp)
		pass(healthSettle + time.Millisecond)
		want("when its backend is up", "tell 1: "+a+"/32 vlan:7/"+a+"/32")
	})
	runWaiting(t, "a prefix waits only while it has no VIP that needs no check", func(e *Engine, _ *lost, f *finder, want func(string, ...string)) {
		const c, d, net = "203.0.114.1", "203.0.114.2", "203.0.114.0/24"
		config := func(services ...model.Service) model.Config {
			config := announcing(append([]model.Service{at(a, model.Active)}, services...)...)
			config.BGP.Prefixes = []model.BGPPrefix{{Prefix: netip.MustParsePrefix(net), Announce: model.AnnouncePrefix}}
			return config
		}
		_ = e.Apply(config(), nil)
		e.Announce(announces{e.forwarder.(forwards).sinks})
		want("at first", "tell 1: "+a+"/32")
		_ = e.Apply(config(checked(c, time.Second)), nil)
		want("with a VIP of the prefix of which nothing is known", "tell 1: "+a+"/32")
		_ = e.Apply(config(checked(c, time.Second), at(d, model.Active)), nil)
		want("with one that needs no check", "tell 1: "+a+"/32 "+net)
	})
	// The first plan waits for results itself, and BGP's restart time is short.
	runWaiting(t, "at the start", func(e *Engine, _ *lost, _ *finder, want func(string, ...string)) {
		began := time.Now()
		_ = e.Apply(announcing(at(a, model.Active), checked(b, 5*time.Second)), nil)
		e.Announce(announces{e.forwarder.(forwards).sinks})
		want("while nothing is known of one VIP")
		pass(firstResults + waysPatience - time.Since(began) + time.Millisecond)
		want("three seconds after the start", both)
	})
	// A check may take a minute: a VIP does not wait for it that long.
	runWaiting(t, "nothing becomes known", func(e *Engine, _ *lost, _ *finder, want func(string, ...string)) {
		begin(e, want, checked(b, time.Minute))
		pass(firstResults + waysPatience - time.Millisecond)
		want("before the end of its patience")
		pass(time.Second)
		want("after it", both)
	})
}

// witness notes how many services are said to run while it is asked for ways.
type witness struct {
	engine   *Engine
	services []int
}

func (w *witness) Unreached() map[model.VIP]bool {
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
