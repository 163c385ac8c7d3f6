package desired

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// begun is when these services begin.
var begun = time.Unix(1_000_000, 0)

// staged is what a change in n parts makes of a service, part by part, with its log.
func staged(before, after model.Service, n int) []engine.Services {
	log := history.Advance(model.Log{}, &before, begun)
	all := []engine.Services{{List: []model.Service{before}, Logs: engine.Logs{before.ID(): log}}}
	now := before
	for k := 1; k <= n; k++ {
		next := after
		if part := 1 / float64(n-k+1); part < 1 {
			next = stage([]model.Service{now}, []model.Service{after}, part, func(model.ServiceID) uint32 { return log.Generations[0].Slots })[0]
		}
		if err := config(next).Validate(); err != nil {
			panic(err)
		}
		log = history.Advance(log, &next, begun)
		all = append(all, engine.Services{List: []model.Service{next}, Logs: engine.Logs{next.ID(): log}})
		now = next
	}
	return all
}

// In equal parts slots move in equal parts, and hardly more of them than at once.
func TestStages(t *testing.T) {
	many := func(n int) model.Service { return config(web("web", n)).Services[0] }
	drained := func(s model.Service, state model.BackendState) model.Service {
		s.Backends = slices.Clone(s.Backends)
		s.Backends[0].State = state
		return s
	}
	small := many(4)
	for i := range small.Backends {
		small.Backends[i].Weight = 1 // cannot be halved
	}
	replaced := many(12)
	replaced.Backends = slices.Clone(replaced.Backends)
	for i := range replaced.Backends { // others of the same names
		replaced.Backends[i].Address = netip.AddrFrom4([4]byte{10, 9, 0, byte(1 + i)})
	}
	for name, test := range map[string]struct{ before, after model.Service }{
		"one comes":               {many(3), many(4)},
		"one goes":                {many(4), many(3)},
		"one drains":              {many(4), drained(many(4), model.Draining)},
		"one is back":             {drained(many(4), model.Draining), many(4)},
		"small weights, one goes": {small, many(3)},
		"all are replaced":        {many(12), replaced},
	} {
		const parts = 4
		states := staged(test.before, test.after, parts)
		direct := engine.Moves(states[0], engine.Services{List: []model.Service{test.after},
			Logs: engine.Logs{test.after.ID(): history.Advance(states[0].Logs[test.before.ID()], &test.after, begun)}})[0]
		total, sizes := 0, []string{}
		for k := range parts {
			m := engine.Moves(states[k], states[k+1])[0]
			total += m.Moved
			sizes = append(sizes, fmt.Sprint(m.Moved))
			if m.Slots != direct.Slots || float64(m.Moved) < 0.5*float64(direct.Moved)/parts || float64(m.Moved) > 1.8*float64(direct.Moved)/parts {
				t.Errorf("%s: part %d of %d moves %d of %d slots, want about a quarter of the %d that move at once", name, k+1, parts, m.Moved, m.Slots, direct.Moved)
			}
		}
		if float64(total) > 1.3*float64(direct.Moved) {
			t.Errorf("%s: %s slots move in parts, and %d at once", name, strings.Join(sizes, " + "), direct.Moved)
		}
	}
}

// Changes that cannot be divided come with the last part, and no part contradicts another set.
func TestStagesOfWhatCannotBeDivided(t *testing.T) {
	base := config(web("web", 3)).Services[0]
	fixed := func(model.ServiceID) uint32 { return 1021 }
	other := func(change func(*model.Service)) model.Service {
		s := config(web("web", 4)).Services[0]
		s.Backends = slices.Clone(s.Backends)
		change(&s)
		return s
	}
	for name, change := range map[string]func(*model.Service){
		"mode":     func(s *model.Service) { s.Mode = model.IPIP },
		"affinity": func(s *model.Service) { s.Affinity = model.AffinitySourceIP },
		"size":     func(s *model.Service) { s.RingSize = 2003 },
		"policy":   func(s *model.Service) { s.Policy = model.P2C },
		"one MAC":  func(s *model.Service) { s.Backends[1].MAC = model.MAC{2} },
		"nobody":   func(s *model.Service) { s.Backends = nil },
	} {
		got := stage([]model.Service{base}, []model.Service{other(change)}, 0.5, fixed)
		if len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(base) {
			t.Errorf("with another %s half of the way is %+v, want what was", name, got)
		}
	}
	named := func(name string, port uint16) model.Service {
		s := web(name, 2)
		s.Port = model.PortRange{First: port, Last: port}
		return s
	}
	for _, test := range []struct {
		before, after []model.Service
		want          string
	}{
		{nil, []model.Service{named("a", 1)}, "a:1"},
		{[]model.Service{named("a", 1)}, nil, "a:1"},
		{[]model.Service{named("a", 1)}, []model.Service{named("a", 2)}, "a:1"},
		{[]model.Service{named("a", 1)}, []model.Service{named("b", 1)}, "a:1"},
		{[]model.Service{named("a", 1), named("b", 2)}, []model.Service{named("b", 2)}, "b:2 a:1"},
	} {
		var got []string
		for _, s := range stage(test.before, test.after, 0.5, fixed) {
			got = append(got, fmt.Sprintf("%s:%s", s.Name, s.Port))
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("half of the way is %v, want %s", got, test.want)
		}
	}
	// Down is all or nothing: its slots stay its own.
	down := other(func(s *model.Service) { s.Backends = s.Backends[:3]; s.Backends[0].State = model.Down })
	if got := stage([]model.Service{base}, []model.Service{down}, 0.5, fixed)[0]; got.Backends[0].State != model.Active || got.Backends[0].Weight != got.Backends[1].Weight {
		t.Errorf("half of the way to down is %+v", got.Backends)
	}
}
