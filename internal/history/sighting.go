package history

import (
	"time"

	"weir.io/weir/internal/model"
)

// sighting says which generations stay because directors see connections of them, without agents. A
// connection that no director remembers was opened in a slot without a list: all generations that
// the log had at that moment named the same owner there, or one that has left. As long as one of
// them stays, so does the owner in the slot's row, and later generations are younger. So it is
// enough that the oldest stays and, after those that have lost members, the oldest that has all of
// its members. Connections that are opened where rows name further backends are remembered.
type sighting struct {
	from int       // position in the log of the newest generation that stays
	end  time.Time // they stay until then; zero: directors have seen no such connection
}

func newSighting(t *trimmer, log model.Log, held Held, now time.Time) sighting {
	if t.evidence == nil || len(log.Generations) < 2 {
		return sighting{}
	}
	last := t.evidence.Guessed(t.service)
	if last.IsZero() {
		return sighting{}
	}
	seen := sighting{from: 1, end: last.Add(t.service.RetentionOrDefault())}
	crowded := isCrowded(log, held, now)
	for i := len(log.Generations) - 1; i > 0; i-- {
		oldest := &log.Generations[i]
		if t.alive(oldest) && (crowded || len(t.gone(oldest)) == 0 && oldest.Kept == nil) {
			seen.from = i
			break
		}
	}
	return seen
}

// until returns the time until which the generation at a position of the log stays.
func (s *sighting) until(position int) time.Time {
	if position < s.from {
		return time.Time{}
	}
	return s.end
}

// isCrowded reports whether slots are held because their rows are full. A generation that places
// connections until the notice of newer ones is over also counts as holding slots.
func isCrowded(log model.Log, held Held, now time.Time) bool {
	places := false
	for i := range log.Generations {
		g := &log.Generations[i]
		if places && held[g.Number] {
			return true
		}
		places = places || len(g.Members) > 0 && !now.Before(g.Places())
	}
	return false
}
