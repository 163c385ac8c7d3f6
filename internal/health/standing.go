package health

import (
	"time"

	"weir.io/weir/internal/model"
)

// standing is what the results so far say about a backend. It has no clock.
type standing struct {
	state               model.HealthState
	since               time.Time // of the state
	successes, failures uint16    // in a row: one of them is 0 once a probe has ended
	serving             bool      // in use: not taken out while its state is unknown
}

// newStanding returns what is known before the first result, which then decides alone: several results
// are needed only to overrule something known. But taking out a backend that has connections
// already needs as many failures as for any other.
func newStanding(how *model.HealthCheck, serving bool, now time.Time) standing {
	s := standing{state: model.HealthUnknown, since: now, serving: serving}
	if !serving {
		s.failures = how.Fall - 1
	}
	return s
}

// recheck adapts the standing to a check that asks for something else than before. The state holds
// until there is evidence against it; if the former check found the backend down, the first success
// is enough.
func (s *standing) recheck(how *model.HealthCheck) {
	if s.state == model.HealthUnknown {
		*s = newStanding(how, s.serving, s.since)
		return
	}
	s.successes, s.failures = how.Rise-1, 0
}

// note counts a result, and says whether the state has changed.
func (s *standing) note(ok bool, how *model.HealthCheck, now time.Time) (changed bool) {
	next := s.state
	if ok {
		s.failures = 0
		if s.successes = min(s.successes+1, how.Rise); s.successes >= how.Rise || s.state == model.HealthUnknown {
			next = model.HealthUp
		}
	} else {
		s.successes = 0
		if s.failures = min(s.failures+1, how.Fall); s.failures >= how.Fall {
			next = model.HealthDown
		}
	}
	if next == s.state {
		return false
	}
	s.state, s.since, s.serving = next, now, false
	return true
}
