package engine

import (
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// Connections are handed over to the backends that answer as ones that can take them. Those of
// which nothing is known fall back; where nobody asks, nothing is known to the contrary.
func TestRedirectsToThoseThatAnswer(t *testing.T) {
	s, gue := checkedWeb(4, 0), model.GUE
	s.Health.Interval = model.Duration(7 * time.Second)
	s.Mode, s.Port = model.Redirect, model.PortRange{First: 443, Last: 443}
	s.Backends[2].Mode = &gue // its own: nobody redirects to it
	s.Backends[3].State = model.Down
	desired := config(s)
	asked := func(i int) model.Target {
		target := targetOf(&s, i)
		target.Redirect = true
		return target
	}
	want := []model.Target{asked(0), asked(1)}
	var got []model.Target
	for _, c := range Checks(&desired, func(target model.Target) bool { return target == asked(0) }) {
		if c.Redirect {
			got = append(got, c.Target)
			if c.Way != nil || c.How.Kind != model.CheckRedirect || c.How.Interval != s.Health.Interval || c.Serving != (c.Target == asked(0)) {
				t.Errorf("the probe is %+v", c)
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("probed are %v, want %v", got, want)
	}
	for name, test := range map[string]struct {
		health Health
		want   []bool
	}{
		"nobody asks":   {nil, []bool{true, true, false, true}},
		"not known yet": {Health{asked(0): model.HealthUnknown, asked(1): model.HealthUp}, []bool{false, true, false, true}},
		"one does not":  {Health{asked(0): model.HealthUp, asked(1): model.HealthDown}, []bool{true, false, false, true}},
		"health alone":  {Health{targetOf(&s, 0): model.HealthDown}, []bool{true, true, false, true}},
	} {
		table, _ := Plan(desired, nil, test.health)
		for i, b := range table.Services[0].Backends {
			if b.Redirect != test.want[i] {
				t.Errorf("%s: connections are handed over to backend %d: %v", name, i, b.Redirect)
			}
		}
		if !slices.Equal(table.Services[0].Ring.Slots, planOne(t, s, nil).Ring.Slots) {
			t.Errorf("%s: the ring is another one", name)
		}
	}
}
