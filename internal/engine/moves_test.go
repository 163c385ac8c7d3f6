package engine

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// changed is a service after each of some changes, with its logs.
func changed(s model.Service, changes ...func(s *model.Service)) []Services {
	var all []Services
	var log model.Log
	for i, change := range append([]func(s *model.Service){func(*model.Service) {}}, changes...) {
		s.Backends = append([]model.Backend(nil), s.Backends...)
		change(&s)
		log = history.Advance(log, &s, time.Unix(int64(i), 0))
		all = append(all, Services{[]model.Service{s}, Logs{s.ID(): log}})
	}
	return all
}

// owner is the backend that gets a new flow.
func owner(s *model.TableService, f model.Flow) netip.AddrPort {
	slot := s.Ring.Slots[s.Ring.SlotOf(f.Hash(s.Salt, s.Affinity))]
	return s.Backends[slot.Owner].Endpoint()
}

// The reported move is the share of new flows that go to another backend: of 200,000 flows
// of as many clients.
func TestMoves(t *testing.T) {
	weigh := func(i int, weight uint16) func(s *model.Service) {
		return func(s *model.Service) { s.Backends[i].Weight = weight }
	}
	for name, test := range map[string]struct {
		change    func(s *model.Service)
		slots     int
		low, high int // percent
	}{
		"nothing":          {func(*model.Service) {}, 1021, 0, 0},
		"a mode":           {func(s *model.Service) { s.Mode = model.GUE }, 1021, 0, 0},
		"the order":        {func(s *model.Service) { s.Backends[0], s.Backends[2] = s.Backends[2], s.Backends[0] }, 1021, 0, 0},
		"a policy":         {func(s *model.Service) { s.Policy = model.P2C }, 1021, 0, 0},
		"one drains":       {func(s *model.Service) { s.Backends[1].State = model.Draining }, 1021, 25, 28},
		"one is gone":      {func(s *model.Service) { s.Backends = s.Backends[1:] }, 1021, 25, 28},
		"one weighs twice": {weigh(0, 200), 1021, 15, 25},
		"another size":     {func(s *model.Service) { s.RingSize = 2003 }, 2003, 70, 80},
		"a smaller size":   {func(s *model.Service) { s.RingSize = 499 }, 1497, 70, 80},
		"another affinity": {func(s *model.Service) { s.Affinity = model.AffinitySourceIP }, 1021, 74, 76},
	} {
		states := changed(web(4), test.change)
		moves := Moves(states[0], states[1])
		if len(moves) != 1 || moves[0].Service != "web" || moves[0].Slots != test.slots || moves[0].Held != 0 {
			t.Errorf("%s: moves are %+v, want those of %d slots of web, none held", name, moves, test.slots)
			continue
		}
		share := float64(moves[0].Moved) / float64(moves[0].Slots)
		if 100*share < float64(test.low) || 100*share > float64(test.high) {
			t.Errorf("%s moves %s, want %d%% to %d%%", name, moves[0].Share(), test.low, test.high)
		}
		was, _ := states[0].plan(NewPlanner())
		is, _ := states[1].plan(NewPlanner())
		const flows = 200_000
		elsewhere, r, id := 0, rand.New(rand.NewPCG(1, 2)), states[0].List[0].ID()
		for range flows {
			f := model.Flow{Source: netip.AddrFrom4([4]byte{198, 18, byte(r.Uint32()), byte(r.Uint32())}), SourcePort: uint16(r.Uint32()),
				Destination: id.VIP, DestinationPort: 80, Protocol: uint8(model.TCP)}
			if owner(was[id], f) != owner(is[id], f) {
				elsewhere++
			}
		}
		if got := float64(elsewhere) / flows; math.Abs(got-share) > 0.02 {
			t.Errorf("%s moves %d of %d flows, and is said to move %s", name, elsewhere, flows, moves[0].Share())
		}
	}
}

// Each change takes all slots to others. Those that cannot go because their rows are full
// are held, and move when there is room.
func TestMovesOfHeldSlots(t *testing.T) {
	s := web(2 * 10)
	s.RingSize = 1021
	var changes []func(*model.Service)
	for pair := range 10 {
		changes = append(changes, func(s *model.Service) {
			for i := range s.Backends {
				s.Backends[i].State = model.Draining
				if i/2 == pair {
					s.Backends[i].State = model.Active
				}
			}
		})
	}
	states := changed(s, changes...)[1:]
	held, holding := 0, 0
	for i := range states[1:] {
		m := Moves(states[i], states[i+1])[0]
		if m.Moved+m.Held != 1021 {
			t.Errorf("at change %d %d slots move and %d are held, of 1021", i, m.Moved, m.Held)
		}
		if held = m.Held; held > 0 {
			holding++
		}
	}
	if holding == 0 {
		t.Fatal("no slot was held")
	}
	last := states[len(states)-1]
	later, id := last, s.ID()
	log := last.Logs[id]
	log.Generations = log.Generations[:1]
	later.Logs = Logs{id: log}
	if m := Moves(last, later)[0]; m.Moved != held || m.Held != 0 {
		t.Errorf("of %d held slots %d move when there is room, and %d are held still", held, m.Moved, m.Held)
	}
}

// Services that come and go have nothing that moves.
func TestMovesOfServicesThatStay(t *testing.T) {
	other := web(3)
	other.Name, other.Port = "other", model.PortRange{First: 443, Last: 443}
	both := Services{[]model.Service{web(3), other}, Logs{}}
	one := Services{[]model.Service{other}, Logs{}}
	if got := fmt.Sprint(Moves(both, one), Moves(one, both), Moves(Services{}, both)); got != "[{other 1021 0 0}] [{other 1021 0 0}] []" {
		t.Errorf("what moves is %s", got)
	}
	empty, some := one, one
	empty.List = []model.Service{other}
	empty.List[0].Backends = nil
	if got := fmt.Sprint(Moves(empty, some), Moves(some, empty)); got != "[{other 1021 1021 0}] [{other 0 0 0}]" {
		t.Errorf("with nobody before, and after, what moves is %s", got)
	}
}

// An engine counts and logs what moves, once the sink has taken it.
func TestEngineCountsMoves(t *testing.T) {
	var text strings.Builder
	sink := &recorder{}
	e := New(Deps{Forwarder: sink, Log: slog.New(slog.NewTextHandler(&text, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.Run(ctx)
	}()
	states := changed(web(4),
		func(s *model.Service) { s.Backends[0].State = model.Draining },
		func(s *model.Service) { s.Mode = model.GUE },
		func(s *model.Service) { s.Backends[0].State = model.Active; s.Backends[1].State = model.Draining })
	id, last, total := states[0].List[0].ID(), 0, 0
	for i, s := range states {
		if err := e.Apply(model.Config{Services: s.List}, s.Logs); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			if n := Moves(states[i-1], s)[0].Moved; n > 0 {
				last, total = n, total+n
			}
		}
		if got := e.LogStatus()[id]; got.Moved != last || got.MovedTotal != uint64(total) {
			t.Errorf("after %d changes the status says %d of %d, want %d of %d", i, got.Moved, got.MovedTotal, last, total)
		}
	}
	if err := e.Apply(model.Config{Services: states[3].List}, states[3].Logs); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-ended
	if n := strings.Count(text.String(), `msg="slots moved" service=web`); n != 2 {
		t.Errorf("two of three changes move slots, and the log says so %d times:\n%s", n, &text)
	}
	if want := fmt.Sprintf("moved=%d slots=1021 share=%.1f%% held=0", last, float64(last)/10.21); !strings.Contains(text.String(), want) {
		t.Errorf("the log does not say %q:\n%s", want, &text)
	}
}
