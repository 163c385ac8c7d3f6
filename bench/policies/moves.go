package policies

import (
	"math/rand/v2"
	"strconv"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
)

var movesNotes = []string{
	"computed by the code that directors run (the log, the ring, the rows), in rings of the default size; which backends are chosen differs from round to round",
	"moved: the share of new connections that go to another backend than the same connection would have before. Open connections of backends that are still there stay: [consistency](../internals/consistency.md)",
	"least: what must move, whoever places connections, so that shares follow weights. modulo: hash modulo the number of backends, without a ring; where backends are replaced each takes the number of one that went",
	"shared: the share of slots whose connections may be of several backends after the change, until the generation before it has left the log. That is what a director has to remember flows of in modes without agents",
	"halve 10 %: a tenth of the backends get half of their weight",
	"with 100,000 backends in one service only the ring is computed, not the backups that rows are made of: these take minutes, and seconds with 10,000. A site as large as that should have several services",
}

var (
	movedSlots  = record.Quantity{Name: "moved", Unit: "1", Better: record.Lower}
	sharedSlots = record.Quantity{Name: "shared", Unit: "1", Better: record.Lower}
)

// mostPlanned is up to how many backends of one service are planned with the directors' code.
const mostPlanned = 10000

func askMoves(a *asking) error {
	for _, n := range []int{10, 100, 1000, 10000, 100000} {
		if a.settings.Smoke && n > 100 {
			break
		}
		planner := engine.NewPlanner()
		for round := range a.settings.Rounds {
			if n >= mostPlanned && round > 0 {
				break // with so many backends any tenth is like another
			}
			for _, c := range changes {
				if err := a.context.Err(); err != nil {
					return err
				}
				random := rand.New(rand.NewPCG(a.settings.Seed+uint64(round), 0))
				if err := a.move(c, n, random, planner); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (a *asking) move(c change, n int, random *rand.Rand, planner *engine.Planner) error {
	at := record.Conditions{"change": c.name, "backends": strconv.Itoa(n)}
	var least float64
	if n <= mostPlanned {
		o, must, err := c.after(n, random, planner)
		if err != nil {
			return err
		}
		least = must
		a.into.Add("maglev", at, movedSlots, o.moved)
		a.into.Add("maglev", at, sharedSlots, o.lists)
	} else {
		var moved float64
		moved, least = c.ringAlone(n, random)
		a.into.Add("maglev", at, movedSlots, moved)
	}
	a.into.Add("least", at, movedSlots, least)
	if now, known := (map[string]int{"add 1": n + 1, "remove 1": n - 1, "add 10 %": n + n/10}[c.name]); known {
		a.into.Add("modulo", at, movedSlots, 1-float64(min(n, now))/lcm(n, now))
	} else if c.name == "replace 10 %" {
		a.into.Add("modulo", at, movedSlots, float64(n/10)/float64(n))
	}
	return nil
}

// ringAlone returns the share of a ring's slots that a change moves.
func (c change) ringAlone(n int, random *rand.Rand) (moved, must float64) {
	before := backendsFrom(0, n)
	after := c.apply(before, random)
	size := maglev.DefaultSize(n)
	was, is := owners(size, before), owners(size, after)
	count := 0
	for i := range was {
		if was[i] != is[i] {
			count++
		}
	}
	return float64(count) / float64(size), least(before, after)
}

func owners(size uint32, backends []model.Backend) []string {
	var members []maglev.Member
	for _, b := range backends {
		if b.State != model.Draining {
			members = append(members, maglev.Member{Key: b.Endpoint().String(), Weight: b.Weight})
		}
	}
	names := make([]string, size)
	for i, owner := range maglev.Ring(size, members) {
		names[i] = members[owner].Key
	}
	return names
}

// lcm is the least common multiple: in that many consecutive hashes, two moduli agree on as many
// hashes as the smaller modulus.
func lcm(a, b int) float64 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return float64(a/x) * float64(b)
}
