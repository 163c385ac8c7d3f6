// Package history keeps a service's log of generations: it appends generations as the service
// changes, and takes out those that no connection needs any more. It has no clock and does no I/O:
// equal arguments give equal logs.
package history

import (
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// A log's rings are kept in memory, and each makes computing rows slower: a log has at most
// maxSlots slots in all its rings together, within these bounds on its generations.
const (
	maxSlots         = 1 << 22
	leastGenerations = 8
	mostGenerations  = 256
)

// mostBeforeOtherSlots is how many members the older generations, all with the same slots, may name
// in a slot when a generation with other slots is appended: of another size or affinity. After a
// change of size a slot may lie on the border of two slots in each of them, which name two owners
// and, if connections were placed on backups, too, two backups. With the owner and the backup of
// the new ring these are six candidates, which is the least bound on a row, so that no slot is held
// back by the change (see maglev.Rows). After a change of affinity a packet is in two rows, which
// share the bound: the older row has at most three candidates that must be named, which is half of
// the least bound.
const mostBeforeOtherSlots = 4

// Advance returns the log with a new generation if the service's membership, weights, policy, ring
// size or affinity are no longer those of the newest one. The generation waits, and the log is
// returned unchanged, while the log is full. A new size or affinity alone waits, and the rest of
// the generation does not, while the log has more than two generations (with p2c or tiers: more than one),
// rings of two sizes, or two affinities. [Current] says whether something waits. The passed log is
// not written to.
func Advance(log model.Log, s *model.Service, now time.Time) model.Log {
	next := nextOf(log, s)
	if len(log.Generations) == 0 {
		next.Number = 1
		next.Since = stamp(now)
		return model.Log{Generations: []model.Generation{next}, Steps: log.Steps, Strained: log.Strained}
	}
	newest := &log.Generations[0]
	if is(newest, &next) {
		return log
	}
	rest := slices.Clone(log.Generations)
	if most := capacity(next.Slots); len(rest) >= most {
		if rest = withoutRepeated(rest, most-1); len(rest) >= most {
			return log
		}
	}
	next.Number = newest.Number + 1
	next.Since = stamp(now)
	if next.Since.Before(newest.Since) {
		next.Since = newest.Since // the clock was set back
	}
	return model.Log{Generations: slices.Insert(rest, 0, next), Steps: log.Steps, Strained: log.Strained}
}

// Current reports whether the newest generation is what the service asks for: nothing
// waits.
func Current(log model.Log, s *model.Service) bool {
	if len(log.Generations) == 0 {
		return false
	}
	next := desired(log, s)
	return is(&log.Generations[0], &next)
}

// nextOf is the next generation: what the service asks for, except a size or an affinity that has
// to wait.
func nextOf(log model.Log, s *model.Service) model.Generation {
	next := desired(log, s)
	if len(log.Generations) > 0 && !mayHaveOtherSlots(log) {
		next.Slots, next.Affinity = log.Generations[0].Slots, log.Generations[0].Affinity
	}
	return next
}

// isFull reports whether something waits because the log has its greatest length.
func isFull(log model.Log, s *model.Service) bool {
	log = Advance(log, s, time.Time{})
	next := nextOf(log, s)
	return !is(&log.Generations[0], &next)
}

func stamp(now time.Time) time.Time { return now.UTC().Round(0) }

// desired is the generation that the service asks for.
func desired(log model.Log, s *model.Service) model.Generation {
	g := model.Generation{Slots: s.RingSize, Affinity: s.PlacedBy(), Policy: s.Policy, Members: make([]model.Member, 0, len(s.Backends))}
	if g.Slots == 0 {
		g.Slots = defaultSize(log, len(s.Backends))
	}
	for i := range s.Backends {
		if b := &s.Backends[i]; owns(b) {
			g.Members = append(g.Members, model.Member{Backend: b.Endpoint(), Weight: b.Weight, Tier: b.Tier})
		}
	}
	slices.SortFunc(g.Members, func(a, b model.Member) int { return a.Backend.Compare(b.Backend) })
	if s.SharesChange() {
		scale(g.Members, &log)
	}
	return g
}

// owns reports whether a backend owns slots.
func owns(b *model.Backend) bool { return b.State != model.Draining && b.Weight > 0 }

// defaultSize is the size of a ring whose size is not configured. It follows all backends, so that
// it does not change when one drains, and stays until it is off by a factor of two: a change of
// size moves every slot.
func defaultSize(log model.Log, backends int) uint32 {
	size := model.DefaultRingSize(backends)
	if len(log.Generations) == 0 {
		return size
	}
	if now := log.Generations[0].Slots; size < 2*now && now < 2*size {
		return now
	}
	return size
}

// mayHaveOtherSlots reports whether a generation of another size or affinity may be
// appended.
func mayHaveOtherSlots(log model.Log) bool {
	named := 0
	for i := range log.Generations {
		g := &log.Generations[i]
		if !sameSlots(g, &log.Generations[0]) {
			return false
		}
		if named += 2; g.Policy == model.P2C {
			named += 2
		}
		// Rows name backends of other tiers, too.
		if i > 0 && (g.Tiers() > 1 || log.Generations[0].Tiers() > 1) {
			return false
		}
	}
	return named <= mostBeforeOtherSlots
}

// sameSlots reports whether the same flows are in each slot.
func sameSlots(a, b *model.Generation) bool {
	return a.Slots == b.Slots && a.Affinity == b.Affinity
}

func same(a, b *model.Generation) bool {
	return sameSlots(a, b) && a.Policy == b.Policy && slices.Equal(a.Members, b.Members)
}

// is reports whether the newest generation equals the next one, and no member has left it.
func is(newest, next *model.Generation) bool {
	return same(newest, next) && len(newest.Gone) == 0
}

// capacity is how many generations a log may have whose rings are of this size.
func capacity(slots uint32) int {
	return min(max(maxSlots/int(slots), leastGenerations), mostGenerations)
}

// withoutRepeated takes out the oldest generations whose ring a newer one also has, until that many
// generations are left, or none can be taken. No row loses a candidate by it.
func withoutRepeated(log []model.Generation, left int) []model.Generation {
	for i := len(log) - 1; i > 0 && len(log) > left; i-- {
		if slices.ContainsFunc(log[:i], func(newer model.Generation) bool {
			return same(&newer, &log[i]) && log[i].Kept.Within(newer.Kept)
		}) {
			log = slices.Delete(log, i, i+1)
		}
	}
	return log
}

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
