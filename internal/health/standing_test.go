package health

import (
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// TestStanding plays results: + succeeds, - fails, ? asks for something else. The states
// are those after each of them: u up, d down, n unknown.
func TestStanding(t *testing.T) {
	how := &model.HealthCheck{Rise: 2, Fall: 3}
	for _, test := range []struct {
		name            string
		serving         bool
		results, states string
	}{
		{"the first success decides", false, "+", "u"},
		{"the first failure decides", false, "-", "d"},
		{"it falls by failures in a row", false, "+---", "uuud"},
		{"failures that are not in a row do not add up", false, "+--+--+--+", "uuuuuuuuuu"},
		{"it rises by successes in a row", false, "-++", "ddu"},
		{"successes that are not in a row do not add up", false, "-+-+-+-++", "ddddddddu"},
		{"it rises and falls again and again", false, "+---++---++", "uuudduuuddu"},
		{"more failures than needed change nothing", false, "------++", "dddddddu"},
		{"what serves is not taken out by one failure", true, "--+", "nnu"},
		{"what serves is taken out by as many as any", true, "---", "nnd"},
		{"another question does not take it out", false, "+--?--", "uuuuuu"},
		{"and is answered by the next failures", false, "+?---", "uuuud"},
		{"one success is enough when what failed is not asked any more", false, "-?+", "ddu"},
		{"but not after another failure", false, "-?-++", "ddddu"},
		{"another question before the first result changes nothing", false, "?-", "nd"},
		{"nor does it for what serves", true, "-?--", "nnnn"},
	} {
		t.Run(test.name, func(t *testing.T) {
			now := time.Unix(1, 0)
			s := newStanding(how, test.serving, now)
			var states strings.Builder
			for _, r := range test.results {
				before := s
				now = now.Add(time.Second)
				stateChanged := false
				if r == '?' {
					s.recheck(how)
				} else {
					stateChanged = s.note(r == '+', how, now)
				}
				if stateChanged != (s.state != before.state) || stateChanged != (s.since == now) {
					t.Errorf("from %+v to %+v it says turned %v", before, s, stateChanged)
				}
				states.WriteByte(map[model.HealthState]byte{model.HealthUp: 'u', model.HealthDown: 'd', model.HealthUnknown: 'n'}[s.state])
			}
			if got := states.String(); got != test.states {
				t.Errorf("%s gives %s, want %s", test.results, got, test.states)
			}
		})
	}
}
