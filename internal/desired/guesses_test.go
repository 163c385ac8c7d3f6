package desired

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// sightings is when the datapath has last seen a connection of an older owner's.
type sightings struct {
	mu   sync.Mutex
	last time.Time
}

func (s *sightings) LastGuess(model.ServiceID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *sightings) see() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
}

// remembered is web in a mode in which directors remember flows.
func remembered(n int) model.Service {
	s := web("a", n)
	s.Mode = model.IPIP
	return s
}

func (d *director) wantGenerations(t *testing.T, when string, want ...uint64) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	var got []uint64
	for _, g := range d.state.Documents()[0].Log.Generations {
		got = append(got, g.Number)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: the log has generations %v, want %v", when, got, want)
	}
}

// inGuessingBubble runs a test with a director whose datapath sees connections when the test says so.
func inGuessingBubble(t *testing.T, test func(t *testing.T, d *director, seen *sightings)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		file, err := store.OpenFile(dir, store.OwnerFile)
		if err != nil {
			t.Fatal(err)
		}
		seen := &sightings{}
		d := startWith(t, file.Close, Deps{Local: file, Guesses: seen})
		defer d.stop()
		test(t, d, seen)
	})
}

// A generation outlives drain while directors see connections of its owners.
func TestLogsStayWhileConnectionsTurnUp(t *testing.T) {
	inGuessingBubble(t, func(t *testing.T, d *director, seen *sightings) {
		d.set(t, remembered(2))
		pass(time.Second)
		d.set(t, remembered(3))
		for range 5 {
			pass(8 * time.Second)
			seen.see()
			d.wantGenerations(t, "connections turn up", 2, 1)
		}
		pass(9 * time.Second)
		d.wantGenerations(t, "before drain", 2, 1)
		pass(2 * time.Second)
		d.wantGenerations(t, "nobody was seen for drain", 2)
		d.wantLog(t, 1)

		seen.see()
		d.set(t, web("a", 4)) // by gue: its agents would have to report
		pass(11 * time.Second)
		seen.see()
		d.wantGenerations(t, "nobody looks", 3)
	})
}

// noRoom is what the datapath says when rows do not fit.
type noRoom struct{}

func (noRoom) Error() string { return "no room" }
func (noRoom) NoRoom()       {}

// Generations that stay only because of what directors see make room for a new one.
func TestGenerationsLeaveWhereRowsHaveNoRoom(t *testing.T) {
	inGuessingBubble(t, func(t *testing.T, d *director, seen *sightings) {
		d.set(t, remembered(2))
		d.set(t, remembered(3))
		pass(8 * time.Second)
		seen.see()
		pass(7 * time.Second)
		d.sink.failWith(errors.New("something else"))
		if err := d.SetFile(config(remembered(4))); err == nil {
			t.Error("the sink's error is lost")
		}
		pass(time.Second)
		d.wantGenerations(t, "with another error", 3, 2, 1)
		d.sink.failWith(noRoom{})
		if err := d.SetFile(config(remembered(5))); !errors.As(err, new(noRoom)) {
			t.Errorf("the sink's error is lost: %v", err)
		}
		pass(time.Second)
		d.wantGenerations(t, "what has drained has made room", 4, 3, 2)
		d.sink.failWith(nil)
		pass(11 * time.Second)
		d.wantLog(t, 1)
	})
}
