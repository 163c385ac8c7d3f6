package desired

import (
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// prober finds what the test says.
type prober struct {
	mu      sync.Mutex
	state   map[model.Target]model.HealthState
	since   map[model.Target]time.Time
	changes chan struct{}
}

func newProber() *prober {
	return &prober{state: map[model.Target]model.HealthState{}, since: map[model.Target]time.Time{}, changes: make(chan struct{}, 1)}
}

func (p *prober) Watch() <-chan struct{} { return p.changes }

func (p *prober) Found() map[model.Target]model.Found {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[model.Target]model.Found{}
	for target, state := range p.state {
		all[target] = model.Found{State: state, For: time.Since(p.since[target])}
	}
	return all
}

func (p *prober) find(s *model.Service, backend int, state model.HealthState) {
	p.mu.Lock()
	target := model.Target{Service: s.ID(), Backend: s.Backends[backend].Endpoint()}
	p.state[target], p.since[target] = state, time.Now()
	p.mu.Unlock()
	select {
	case p.changes <- struct{}{}:
	default:
	}
}

// wantShares wants how many slots each backend of the only service owns, about, in parts of
// a whole share.
func (d *director) wantShares(t *testing.T, when string, wants ...float64) {
	t.Helper()
	d.sink.mu.Lock()
	defer d.sink.mu.Unlock()
	slots := d.sink.last.Services[0].Ring.Slots
	owned, sum := make([]float64, len(wants)), 0.0
	for _, slot := range slots {
		owned[slot.Owner]++
	}
	for _, want := range wants {
		sum += want
	}
	for i, want := range wants {
		if share := want / sum * float64(len(slots)); owned[i] < share-5 || owned[i] > share+5 {
			t.Errorf("%s backend %d owns %v of %d slots, want about %.0f", when, i, owned[i], len(slots), share)
		}
	}
}

// slow is a service whose backends start in eight steps of a second.
func slow(n int) model.Service {
	s := web("a", n)
	s.Health = &model.HealthCheck{Kind: model.CheckTCP, SlowStart: model.Duration(8 * time.Second)}
	return s
}

// A backend's share shrinks while it is down, and grows when it is up again: what is
// forwarded follows, and the process that comes next goes on with it.
func TestSlowStart(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, dir string) {
		d.stop()
		probes, s := newProber(), slow(3)
		d = startProbing(t, dir, probes)
		defer func() { d.stop() }()
		for i := range 3 {
			probes.find(&s, i, model.HealthUp)
		}
		d.set(t, s)
		pass(5 * time.Second)
		d.wantShares(t, "from the beginning", 1, 1, 1)
		probes.find(&s, 0, model.HealthDown)
		pass(900 * time.Millisecond)
		d.wantShares(t, "down for less than a step", 1, 1, 1)
		pass(2 * time.Second)
		d.wantShares(t, "down for longer", 1./8, 1, 1)
		pass(time.Minute)
		probes.find(&s, 0, model.HealthUp)
		pass(4*time.Second + 500*time.Millisecond)
		d.wantShares(t, "on its way", 5./8, 1, 1)
		if got := d.engine.LogStatus()[s.ID()]; got.Starting != 1 || got.Waits {
			t.Errorf("on its way the log is %+v, want one that starts and nothing that waits", got)
		}
		d.stop()
		d = startProbing(t, dir, probes)
		d.set(t, s)
		d.wantShares(t, "after a restart", 5./8, 1, 1)
		pass(5 * time.Second)
		d.wantShares(t, "in the end", 1, 1, 1)
		pass(time.Minute)
		d.wantLog(t, 1)
		if got := d.engine.LogStatus()[s.ID()]; got.Starting != 0 {
			t.Errorf("in the end the log is %+v, want nobody who starts", got)
		}

		s = slow(4)
		d.set(t, s)
		d.wantShares(t, "with a new backend", 1, 1, 1, 1./8)
		probes.find(&s, 3, model.HealthUp)
		pass(10 * time.Second)
		d.wantShares(t, "when it is up", 1, 1, 1, 1)
	})
}

func startProbing(t *testing.T, dir string, probes *prober) *director {
	t.Helper()
	file, err := store.OpenFile(dir, store.OwnerFile)
	if err != nil {
		t.Fatal(err)
	}
	return startWith(t, file.Close, Deps{Local: file, Health: probes})
}

// Other changes do not wait for backends that start slowly, and those go on.
func TestChangesDuringASlowStart(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, dir string) {
		d.stop()
		probes, s := newProber(), slow(2)
		d = startProbing(t, dir, probes)
		defer d.stop()
		d.set(t, s)
		probes.find(&s, 0, model.HealthDown)
		probes.find(&s, 1, model.HealthUp)
		pass(time.Minute)
		probes.find(&s, 0, model.HealthUp)
		for i := range 20 {
			pass(500 * time.Millisecond)
			other := slow(2)
			other.Backends[1].Weight = uint16(200 + i%2)
			d.set(t, other)
		}
		d.wantShares(t, "in the end", 1, 2)
	})
}
