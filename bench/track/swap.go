package track

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// backendSet is which of a VIP's backends its service has. Each set has two thirds: with each swap
// a third of the backends leaves, another third comes, and most flows move.
type backendSet int

// The sets. A director whose backends will be swapped begins with the lower one.
const (
	wholeSet backendSet = iota
	lowerSet
	upperSet
)

func (s backendSet) of(first, end int) (int, int) {
	third := (end - first) / 3
	switch s {
	case lowerSet:
		return first, end - third
	case upperSet:
		return first + third, end
	}
	return first, end
}

// ErrNotSwapped says that packets did not follow a swap.
var ErrNotSwapped = errors.New("no packet came to the new backends")

// Swaps is the outcome of swapping backends.
type Swaps struct {
	Seen int // swaps that packets were seen to follow

	first, last time.Time // when they were
}

// PerSecond is how often packets followed a swap, from the first time to the last: the time until
// the first swap would make it less. NaN for fewer than two.
func (s Swaps) PerSecond() float64 {
	if s.Seen < 2 {
		return math.NaN()
	}
	return float64(s.Seen-1) / s.last.Sub(s.first).Seconds()
}

// KeepSwapping edits the director's file at that interval until the context ends, which needs
// [Options.Swaps]. Traffic must be under way: an edit that is due waits until packets have followed
// the one before. Otherwise a director with little CPU time would read two edits at once, which
// cancel out, and swap nothing.
func (t *Track) KeepSwapping(ctx context.Context, interval time.Duration) (swaps Swaps, err error) {
	ticks, looks := time.NewTicker(interval), time.NewTicker(5*time.Millisecond)
	defer ticks.Stop()
	defer looks.Stop()
	watch := setWatch{track: t, now: t.set}
	due := false
	for err == nil {
		select {
		case <-ctx.Done():
			return swaps, nil
		case <-ticks.C:
			due = true
		case <-looks.C:
			var followed bool
			if followed, err = watch.look(); followed {
				swaps.saw(time.Now())
			}
		}
		if due && err == nil && watch.now == t.set {
			due, err = false, t.swap()
		}
	}
	return swaps, fmt.Errorf("swap backends: %w", err)
}

func (s *Swaps) saw(at time.Time) {
	if s.Seen == 0 {
		s.first = at
	}
	s.Seen++
	s.last = at
}

// swap changes to the other set.
func (t *Track) swap() error {
	next := upperSet
	if t.set == upperSet {
		next = lowerSet
	}
	t.set = next
	return t.director.Write(t.config(next))
}

// setWatch sees when packets change to the other set.
type setWatch struct {
	track        *Track
	now          backendSet
	lower, upper uint64 // packets that came to the backends which only this set has
}

// look is whether packets changed to the other set since the last look.
func (w *setWatch) look() (bool, error) {
	first, end := w.track.Traffic.BackendsOf(0, w.track.Backends)
	third := (end - first) / 3
	lower, err := w.track.sink.At(first, third)
	if err != nil {
		return false, err
	}
	upper, err := w.track.sink.At(end-third, third)
	if err != nil {
		return false, err
	}
	now := w.now
	switch {
	case w.lower+w.upper == 0: // the first look
	case lower > w.lower && upper == w.upper:
		now = lowerSet
	case upper > w.upper && lower == w.lower:
		now = upperSet
	}
	followed := now != w.now
	w.now, w.lower, w.upper = now, lower, upper
	return followed, nil
}
