package track

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// backendSet is which of a VIP's backends its service has. Two thirds each: a third
// of the backends goes and another one comes with each swap, and most flows move.
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

// KeepSwapping edits the director's file at that interval until the context ends,
// which needs [Options.Swaps], and returns how often packets were seen to follow.
// Traffic must be under way.
func (t *Track) KeepSwapping(ctx context.Context, interval time.Duration) (seen int, err error) {
	ticks, looks := time.NewTicker(interval), time.NewTicker(5*time.Millisecond)
	defer ticks.Stop()
	defer looks.Stop()
	watch := setWatch{track: t, now: t.set}
	for err == nil {
		select {
		case <-ctx.Done():
			return watch.changes, nil
		case <-ticks.C:
			err = t.swap()
		case <-looks.C:
			err = watch.look()
		}
	}
	return watch.changes, fmt.Errorf("swap backends: %w", err)
}

// swap goes over to the other set.
func (t *Track) swap() error {
	next := upperSet
	if t.set == upperSet {
		next = lowerSet
	}
	t.set = next
	return t.director.Write(t.config(next))
}

// setWatch counts how often packets go over to the other set.
type setWatch struct {
	track        *Track
	now          backendSet
	lower, upper uint64 // packets that came to the backends which only this set has
	changes      int
}

func (w *setWatch) look() error {
	first, end := w.track.Traffic.BackendsOf(0, w.track.Backends)
	third := (end - first) / 3
	lower, err := w.track.sink.At(first, third)
	if err != nil {
		return err
	}
	upper, err := w.track.sink.At(end-third, third)
	if err != nil {
		return err
	}
	now := w.now
	switch {
	case w.lower+w.upper == 0: // the first look
	case lower > w.lower && upper == w.upper:
		now = lowerSet
	case upper > w.upper && lower == w.lower:
		now = upperSet
	}
	if now != w.now {
		w.changes++
	}
	w.now, w.lower, w.upper = now, lower, upper
	return nil
}
