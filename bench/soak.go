package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"weir.io/weir/bench/edge"
	"weir.io/weir/bench/inside"
	"weir.io/weir/lab/record"
)

// soakTime is how long a soak lasts, and how often it changes something.
type soakTime struct{ duration, every time.Duration }

var (
	defaultSoak = soakTime{2 * time.Hour, time.Minute}
	smokeSoak   = soakTime{0, time.Second} // one sample
)

// leastSoak is the shortest time between changes: a director takes a second to start.
const leastSoak = time.Second

// soakCycle is after how many changes everything is restored to the beginning, and looked at.
const soakCycle = 5

// The resources that are watched.
var (
	ownMemory   = record.Quantity{Name: "memory", Unit: "B", Better: record.Lower}
	liveHeap    = record.Quantity{Name: "heap", Unit: "B", Better: record.Lower}
	descriptors = record.Quantity{Name: "descriptors", Unit: "", Better: record.Lower}
	goroutines  = record.Quantity{Name: "goroutines", Unit: "", Better: record.Lower}
	ringMemory  = record.Quantity{Name: "rings", Unit: "B", Better: record.Lower}
	pinned      = record.Quantity{Name: "pins", Unit: "", Better: record.Lower}
	bfdLate     = record.Quantity{Name: "bfd-late", Unit: "ms", Better: record.Lower}
	bfdLosses   = record.Quantity{Name: "bfd-losses", Unit: "", Better: record.Lower}
)

// soakGroup is the subject for what belongs to no single process.
const soakGroup = "group"

// soakBFD is longer than elsewhere, because of what else may run on the machine during hours of a
// soak: a kernel that does not preempt its own work keeps threads of any priority, the router's and
// those of `weir bfd` alike, waiting for more than 150 ms while a program makes a map of 10,000,000
// entries. Scenario convergence measures how soon a loss is found.
const soakBFD = 300 * time.Millisecond

var soakNotes = []string{
	"the lab of convergence, with BFD at 3 x 300 ms and 500 requests per second all the while. At random a director is told to end or started, its process is killed and started again, a backend drains and is taken out or is put in, or one of 4 more services comes or goes. The first director, its `weir bfd` and the agents stay",
	"after every five changes all is as in the beginning again, the logs have one generation, and what is there is looked at: so all values of a row are of the same state",
	"memory: what is the process's own of what is resident; heap: what the last garbage collection left of it. How much more Go's runtime keeps changes for many minutes, without a leak. maps: what the kernel counts for the first director's; rings: the part that its rings take. pins: files below the BPF file systems of all directors",
	"bfd-late: how late a packet of the first director's `weir bfd` has left at most so far. It has real-time priority, as the router's daemons have, so what makes it late by much is the kernel (a map of 10,000,000 entries that somebody makes keeps a CPU for 181 ms) or the machine. All BFD sessions that are quicker may end at once then, which says nothing of what hours of changes leave behind: therefore 3 x 300 ms, where convergence measures with 3 x 50 ms. bfd-losses: how often the session of that director has failed so far",
	"growth: what the trend of all samples (Theil-Sen: the median of the slopes between any two) makes of the soak's duration, in per cent of their median; or that of their later half, for what begins late; or how far the least of the last quarter is above the least of the second, for what came once and stays: whichever is the most. A trend has to be one that chance does not make (Kendall, one side, 0.1 %), and what is counted has to have grown by more than one",
}

func measureSoak(ctx context.Context, s *session) error {
	s.note("it lasted %v, with a change every %v", s.soak.duration, s.soak.every)
	options := edge.Options{Directors: 4, Backends: 4, Others: 4, Drain: 500 * time.Millisecond, BFD: soakBFD}
	if s.settings.Smoke {
		options.Directors, options.Backends, options.Others = 2, 2, 1
	}
	e, err := inEdge(ctx, s, options)
	if err != nil {
		return err
	}
	r := e.Request(ctx)
	defer r.Close()
	seed := uint64(time.Now().UnixNano())
	c := &changer{session: s, edge: e, requests: r, random: rand.New(rand.NewPCG(seed, 0)), stays: e.Directors[0]}
	return (&soak{c, time.Now()}).run(ctx)
}

// soak makes changes for hours, and looks at what they leave behind.
type soak struct {
	*changer
	began time.Time
}

func (s *soak) run(ctx context.Context) error {
	turn := time.NewTicker(s.session.soak.every)
	defer turn.Stop()
	changes := soakCycle
	if s.settings.Smoke {
		changes = 2
	}
	for {
		began := time.Now()
		for range changes {
			if err := s.change(ctx); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-turn.C: // the next change is due
			}
		}
		if err := s.look(ctx); err != nil {
			return err
		}
		s.report(began)
		s.history = nil
		left := s.session.soak.duration - time.Since(s.began)
		if left <= 0 {
			break
		}
		s.say("  %.0f s to go, %d requests, %d failed", left.Seconds(), s.requests.Made(), s.requests.Failed(s.began))
	}
	if err := s.requests.Ended(ctx, time.Now()); err != nil {
		return err
	}
	s.add(soakGroup, nil, failed, float64(s.requests.Failed(s.began)))
	s.add(soakGroup, nil, made, float64(s.requests.Made()))
	return nil
}

// change makes a change.
func (s *soak) change(ctx context.Context) error {
	switch s.random.IntN(6) {
	case 0:
		other := s.edge.Others[s.random.IntN(len(s.edge.Others))]
		s.happens("%s comes or goes", other.Name)
		return s.edge.Toggle(ctx, other)
	case 1:
		if d := s.edge.Directors[s.random.IntN(len(s.edge.Directors))]; d.Running && d != s.stays {
			s.happens("%s is killed", d.Name)
			return s.edge.Kill(ctx, d, 500*time.Millisecond)
		}
	}
	return s.one(ctx)
}

// look restores everything to the beginning, and records what there is.
func (s *soak) look(ctx context.Context) error {
	for _, other := range s.edge.Others {
		if other.Active {
			if err := s.edge.Toggle(ctx, other); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(s.whole(ctx), s.edge.Quiet(ctx)); err != nil {
		return err
	}
	p, err := s.edge.Pulse(ctx)
	if err != nil {
		return fmt.Errorf("look at what is taken: %w", err)
	}
	maps, err := inside.Memory(s.edge.Maps())
	if err != nil {
		return err
	}
	for _, t := range p.Usage {
		s.add(t.Who, nil, ownMemory, float64(t.Memory))
		s.add(t.Who, nil, descriptors, float64(t.Descriptors))
		if t.Heap > 0 {
			s.add(t.Who, nil, liveHeap, t.Heap)
		}
		if t.Goroutines > 0 {
			s.add(t.Who, nil, goroutines, t.Goroutines)
		}
	}
	s.add("bfd", nil, bfdLate, milliseconds(p.Late))
	s.add("bfd", nil, bfdLosses, float64(p.Losses))
	s.add(soakGroup, nil, mapMemory, float64(maps))
	s.add(soakGroup, nil, ringMemory, float64(p.Rings))
	s.add(soakGroup, nil, pinned, float64(p.Pins))
	return nil
}

// fewestSamples is the least number of samples whose later half can tell a trend from chance.
const fewestSamples = 16

// chance is by how many standard deviations Kendall's statistic exceeds its mean once in a thousand
// times for values without a trend.
const chance = 3.09

// whole is the step of counted values. They are whole numbers, and one more may be no leak: so
// trends are rounded to it, and a trend of one step is not growth.
const whole = 1

// growth returns by how many percent of their median values have grown: the most of three answers,
// as leaks differ. A steady leak is in the trend of all values, one that begins late in that of the
// later half, and one that happens once and stays raises the least of the last quarter above the
// least of the second; the first quarter is warm-up there. step is the least by which values of
// this kind change, 0 for any.
func growth(values []float64, step float64) (percent float64, err error) {
	if len(values) < fewestSamples {
		return math.NaN(), fmt.Errorf("%d samples are too few to see growth in: %d are the fewest", len(values), fewestSamples)
	}
	if slices.ContainsFunc(values, math.IsNaN) {
		return math.NaN(), errors.New("a sample is missing")
	}
	quarter, half := len(values)/4, len(values)/2
	most := 0.0
	for _, grown := range []float64{
		trend(values),
		trend(values[half:]),
		slices.Min(values[len(values)-quarter:]) - slices.Min(values[quarter:2*quarter]),
	} {
		if step > 0 {
			grown = math.Round(grown/step) * step
		}
		if grown > step {
			most = max(most, grown)
		}
	}
	if most == 0 {
		return 0, nil
	}
	middle := record.Median(values)
	if middle <= 0 {
		return math.NaN(), fmt.Errorf("what is %g in the median has grown by %g: that is no percentage", middle, most)
	}
	return 100 * most / middle, nil
}

// trend returns by how much values taken at equal intervals have grown from the first to the last:
// the median of the slopes between any two values, times the distance from first to last (Theil and
// Sen). No single value, and no change that does not last, moves it far. It is 0 unless values
// without a trend would look the same less than once in a thousand times (Kendall).
func trend(values []float64) float64 {
	var slopes []float64
	score := 0
	for i, from := range values {
		for j, to := range values[i+1:] {
			slopes = append(slopes, (to-from)/float64(j+1))
			score += cmp.Compare(to, from)
		}
	}
	if float64(score-1) <= chance*math.Sqrt(scoreVariance(values)) {
		return 0
	}
	return record.Median(slopes) * float64(len(values)-1)
}

// scoreVariance is the variance of Kendall's score for values without a trend. The score is the
// number of rising pairs less that of falling pairs. Equal values leave less to chance.
func scoreVariance(values []float64) float64 {
	equal := map[float64]int{}
	for _, v := range values {
		equal[v]++
	}
	of := func(n int) float64 { return float64(n * (n - 1) * (2*n + 5)) }
	variance := of(len(values))
	for _, n := range equal {
		variance -= of(n)
	}
	return variance / 18
}

// worstGrowth is the growth of the measurement of these quantities that has grown the most.
func worstGrowth(quantities ...record.Quantity) value {
	return func(s *record.Scenario) (float64, error) {
		most := math.NaN()
		for _, m := range s.Measurements {
			if !slices.Contains(quantities, m.Quantity) {
				continue
			}
			step := 0.0
			if m.Quantity.Unit == "" { // the quantity is a count
				step = whole
			}
			percent, err := growth(m.Rounds, step)
			if err != nil {
				return math.NaN(), fmt.Errorf("%s of %s: %w", m.Quantity.Name, m.Subject, err)
			}
			if math.IsNaN(most) || percent > most {
				most = percent
			}
		}
		if math.IsNaN(most) {
			return most, missingError{subject{soakGroup, nil}, quantities[0]}
		}
		return most, nil
	}
}
