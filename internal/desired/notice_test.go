package desired

import (
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// All directors of a group name a new backend before one places connections on it, and
// one that starts meanwhile does as the others.
func TestNewBackendsAreAnnounced(t *testing.T) {
	group := newGroup(t, etcdlab.New(t, etcdlab.Options{Members: 1}), 3)
	for _, m := range group {
		m.notice = model.Duration(10 * time.Second)
	}
	group[0].must()
	group[1].must()
	put(t, group[0], "cli", shared("a", 1, 3))
	before := agree(t, group[:2]...).Services[0].Ring
	began := time.Now()
	put(t, group[0], "cli", shared("a", 1, 4))
	group[2].must()
	const newcomer = 3
	for i, m := range group {
		until(t, "a director knows the new backend", func() bool { return len(m.table().Services) > 0 && len(m.table().Services[0].Backends) == newcomer+1 })
		due, ring := m.dueToAssign(), m.table().Services[0].Ring
		if time.Since(began) >= time.Duration(group[0].notice) {
			break // there is nothing more to see
		}
		if due.IsZero() {
			t.Fatalf("director %d has not been given notice", i)
		}
		named := 0
		for slot := range ring.Slots {
			row := ring.Row(slot)
			if row[0] != before.Row(slot)[0] {
				t.Fatalf("director %d: slot %d has moved from %d to %d before its time", i, slot, before.Row(slot)[0], row[0])
			}
			if slices.Contains(row, newcomer) {
				named++
			}
		}
		if named < len(ring.Slots)/8 {
			t.Errorf("director %d: %d of %d slots name the new backend", i, named, len(ring.Slots))
		}
	}
	owned := 0
	for _, slot := range agree(t, group...).Services[0].Ring.Slots {
		if slot.Owner == newcomer {
			owned++
		}
	}
	if waited := time.Since(began); owned == 0 || waited < time.Duration(group[0].notice) {
		t.Errorf("the new backend owned %d slots after %v", owned, waited)
	}
}

// A notice may be short: connections are placed as soon as it is over.
func TestShortNotice(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		d.set(t, web("a", 2))
		d.wantSets(t, 1)
		const notice = 20 * time.Millisecond
		d.mu.Lock()
		d.placing = time.Now().Add(notice)
		d.wake()
		d.mu.Unlock()
		pass(notice - time.Millisecond)
		d.wantSets(t, 1)
		pass(2 * time.Millisecond)
		d.wantSets(t, 2)
	})
}

// wantSets says how often the sink must have been set.
func (d *director) wantSets(t *testing.T, want int) {
	t.Helper()
	d.sink.mu.Lock()
	defer d.sink.mu.Unlock()
	if n := len(d.sink.sets); n != want {
		t.Errorf("the sink was set %d times, want %d", n, want)
	}
}
