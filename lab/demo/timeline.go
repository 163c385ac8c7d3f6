package demo

import (
	"sync"
	"time"
)

// timeline remembers when the files were edited, and until when each director
// had applied it.
type timeline struct {
	mu      sync.Mutex
	windows []window
	stage   int
}

// window is a change under way. Its end is zero until it is over.
type window struct{ begin, end time.Time }

// start notes that the files are being edited from now on, towards that stage.
func (t *timeline) start(stage int) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.windows = append(t.windows, window{begin: now})
	t.stage = stage
	return now
}

// end notes that every director has applied the edit.
func (t *timeline) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.windows[len(t.windows)-1].end = time.Now()
}

// changed reports whether some change was under way at some moment in that time.
func (t *timeline) changed(from, to time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.windows {
		if w.begin.Before(to) && (w.end.IsZero() || w.end.After(from)) {
			return true
		}
	}
	return false
}

// current returns the stage that has been in force since then, if there is one.
func (t *timeline) current(since time.Time) (stage int, ok bool) {
	if t.changed(since, time.Now()) {
		return 0, false
	}
	return t.latest(), true
}

// at returns the target stage of the last edit before that moment.
func (t *timeline) at(moment time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	later := 0
	for _, w := range t.windows {
		if w.begin.After(moment) {
			later++
		}
	}
	return t.stage - later
}

// latest returns the target stage of the last edit.
func (t *timeline) latest() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stage
}
