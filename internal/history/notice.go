package history

import (
	"time"

	"weir.io/weir/internal/model"
)

// Announce lets the newest generation of a log, if Advance has just appended it, place connections
// only after a notice. Until then rows name its owners, so that directors that have not learned of
// it yet get no connections of backends that they do not know. A generation of another size,
// affinity or policy than the one before places connections at once, and so does the first. The
// passed log is not written to.
func Announce(log, before model.Log, notice time.Duration) model.Log {
	if notice <= 0 || len(before.Generations) == 0 || len(log.Generations) < 2 {
		return log
	}
	newest := log.Generations[0]
	if last := &before.Generations[0]; newest.Number == last.Number || !sameSlots(&newest, last) || newest.Policy != last.Policy {
		return log
	}
	newest.From = newest.Since.Add(notice)
	log.Generations = append([]model.Generation{newest}, log.Generations[1:]...)
	return log
}

// Coming returns how many of the newest generations place no connections yet, and when that changes
// next. A director whose clock is behind waits no longer than the notice from when it learned of
// the newest.
func Coming(log model.Log, learned, now time.Time) (coming int, next time.Time) {
	for i := range log.Generations {
		g := &log.Generations[i]
		from := g.Places()
		if latest := learned.Add(from.Sub(g.Since)); latest.Before(from) {
			from = latest
		}
		if !now.Before(from) {
			break
		}
		coming, next = i+1, from
	}
	return coming, next
}
