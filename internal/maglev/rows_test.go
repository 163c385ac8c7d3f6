package maglev

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// candidates returns a slot's row as one list.
func (t Table) candidates(slot int) []uint32 {
	s := t.Slots[slot]
	switch {
	case s.Owner == None:
		return nil
	case s.Next == None:
		return []uint32{s.Owner}
	case s.Next&ListFlag == 0:
		return []uint32{s.Owner, s.Next}
	}
	return append([]uint32{s.Owner}, t.Lists[s.Next&^ListFlag].Next...)
}

// oneSlot is a log of rings of one slot: an owner and a backup each, newest first.
func oneSlot(generations ...[2]uint32) []Generation {
	var log []Generation
	for _, g := range generations {
		log = append(log, Generation{Owners: g[:1], Backups: g[1:]})
	}
	return log
}

func TestRow(t *testing.T) {
	type row = []uint32
	tests := []struct {
		name  string
		log   []Generation
		dead  []uint32
		again map[uint32]uint32
		bound int
		want  row
		list  bool
		held  int
	}{
		{name: "owner and backup are inline", log: oneSlot([2]uint32{1, 2}), want: row{1, 2}},
		{name: "one member has no backup", log: oneSlot([2]uint32{1, None}), want: row{1}},
		{name: "older owners follow, newest first", log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 9}, [2]uint32{4, 9}),
			want: row{1, 2, 3, 4, 9}, list: true},
		{name: "everybody is named once", log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 9}, [2]uint32{1, 9}, [2]uint32{3, 9}),
			want: row{1, 2, 3, 9}, list: true},
		{name: "a slot that never moved has no list", log: oneSlot([2]uint32{1, 2}, [2]uint32{1, 2}), want: row{1, 2}},
		{name: "an older backup is last", log: oneSlot([2]uint32{1, 2}, [2]uint32{1, 3}, [2]uint32{4, 5}), want: row{1, 2, 4, 3, 5}, list: true},
		{name: "older backups do not hold a slot", log: oneSlot([2]uint32{1, 2}, [2]uint32{1, 3}, [2]uint32{1, 4}), bound: 3,
			want: row{1, 2, 3}, list: true},
		{name: "an older backup takes the dead one's place", log: oneSlot([2]uint32{1, 2}, [2]uint32{1, 3}), dead: row{2}, want: row{1, 3}},
		{name: "a backup that owned the slot is in a list", log: oneSlot([2]uint32{1, 2}, [2]uint32{2, 9}),
			want: row{1, 2, 9}, list: true},
		{name: "a dead owner's backup is first", log: oneSlot([2]uint32{1, 2}), dead: row{1}, want: row{2}},
		{name: "and takes no list with it", log: oneSlot([2]uint32{1, 2}, [2]uint32{2, 1}), dead: row{1}, want: row{2}},
		{name: "a dead backup leaves", log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 9}), dead: row{2}, want: row{1, 3, 9}, list: true},
		{name: "dead older owners leave", log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 9}, [2]uint32{4, 9}), dead: row{3},
			want: row{1, 2, 4, 9}, list: true},
		{name: "owner and backup dead: the owner before", log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 9}), dead: row{1, 2},
			want: row{3, 9}},
		{name: "nobody lives", log: oneSlot([2]uint32{1, 2}), dead: row{1, 2}},
		{name: "a full row is held", log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}, [2]uint32{5, 6}), bound: 3,
			want: row{3, 4, 5}, list: true, held: 1},
		{name: "held twice", log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}, [2]uint32{5, 6}), bound: 2,
			want: row{5, 6}, held: 1},
		{name: "the dead free a place", log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}, [2]uint32{5, 6}), bound: 3, dead: row{5},
			want: row{1, 2, 3}, list: true},
		{name: "held with the owner of the newest", log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 9}, [2]uint32{1, 4}), bound: 2,
			want: row{1, 4}},
		{name: "who came back is last", log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}, [2]uint32{5, 4}, [2]uint32{6, 4}), dead: row{5}, again: map[uint32]uint32{3: 13},
			want: row{1, 2, 6, 4, 13}, list: true},
		{name: "and named once", log: oneSlot([2]uint32{1, 13}, [2]uint32{3, 4}), again: map[uint32]uint32{3: 13}, want: row{1, 13, 4}, list: true},
		{name: "and only where there is room", log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}, [2]uint32{5, 6}), again: map[uint32]uint32{3: 13}, bound: 4,
			want: row{1, 2, 5, 4}, list: true},
		{name: "who came back holds no slot", log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}), again: map[uint32]uint32{3: 13}, bound: 2, want: row{1, 2}},
		{name: "a backup that came back is not named", log: oneSlot([2]uint32{1, 2}, [2]uint32{1, 3}), again: map[uint32]uint32{3: 13}, want: row{1, 2}},
		{name: "a generation of nobody adds nothing", log: append([]Generation{{}}, oneSlot([2]uint32{1, 2})...), want: row{1, 2}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dead := Gone{}
			for _, m := range test.dead {
				dead[m] = None
			}
			maps.Copy(dead, test.again)
			if test.bound == 0 {
				test.bound = 8
			}
			table := Rows(test.log, dead, test.bound)
			if got := table.candidates(0); !slices.Equal(got, test.want) {
				t.Errorf("the row is %v, want %v", got, test.want)
			}
			if (len(table.Lists) == 1) != test.list || table.Held != test.held {
				t.Errorf("%d lists, %d slots held, want a list: %v, held: %d", len(table.Lists), table.Held, test.list, test.held)
			}
		})
	}
}

// both makes new connections go to backups, too, in some generations of a log.
func both(log []Generation, numbers ...int) []Generation {
	for _, i := range numbers {
		log[i].Both = true
	}
	return log
}

// If new connections go to backups, too, later rows have these like owners.
func TestRowOfBoth(t *testing.T) {
	type row = []uint32
	for name, test := range map[string]struct {
		log   []Generation
		dead  row
		bound int
		want  row
		fixed bool // new connections go to the owner alone
		list  bool
		age   row // where there is a list
		held  int
	}{
		"nothing has changed": {log: both(oneSlot([2]uint32{1, 2}), 0), want: row{1, 2}},
		"older backups are needed": {log: both(oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}, [2]uint32{5, 6}), 0, 1, 2),
			want: row{1, 2, 3, 4, 5, 6}, list: true, age: row{5, 6, 3, 4, 1, 2}},
		"and hold a slot": {log: both(oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}), 0, 1), bound: 3, want: row{3, 4}, held: 1},
		"only those of some": {log: both(oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}, [2]uint32{5, 6}), 1), bound: 5,
			want: row{1, 2, 3, 4, 5}, list: true, age: row{5, 3, 4, 1, 2}},
		"no longer": {log: both(oneSlot([2]uint32{1, 2}, [2]uint32{1, 2}), 1), want: row{1, 2}},
		"another backup took the dead one's place": {log: both(oneSlot([2]uint32{1, 2}, [2]uint32{1, 3}), 0, 1), dead: row{2},
			want: row{1, 3}, list: true, fixed: true, age: row{1, 3}},
		"an older owner took the dead backup's place": {log: both(oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}), 0, 1), dead: row{2},
			want: row{1, 3, 4}, list: true, fixed: true, age: row{3, 4, 1}},
		"the backup took the dead owner's place": {log: both(oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}), 0, 1), dead: row{1},
			want: row{2, 3, 4}, list: true, fixed: true, age: row{3, 4, 2}},
		"one member, and another one before": {log: both(oneSlot([2]uint32{1, None}, [2]uint32{1, 2}), 0), want: row{1, 2},
			list: true, fixed: true, age: row{1, 2}},
		"held at one whose backups get nothing": {log: both(oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}), 0), bound: 2,
			want: row{3, 4}, list: true, fixed: true, age: row{3, 4}, held: 1},
	} {
		dead := Gone{}
		for _, m := range test.dead {
			dead[m] = None
		}
		if test.bound == 0 {
			test.bound = 8
		}
		table := Rows(test.log, dead, test.bound)
		got := table.candidates(0)
		if !slices.Equal(got, test.want) || (len(table.Lists) == 1) != test.list || table.Held != test.held || table.Shared != 1 {
			t.Errorf("%s: the row is %v, %d lists, held %d, shared %d; want %v, a list: %v, held %d, shared 1",
				name, got, len(table.Lists), table.Held, table.Shared, test.want, test.list, test.held)
			continue
		}
		if !test.list {
			continue
		}
		var age row
		for _, position := range table.Lists[0].Oldest {
			age = append(age, got[position])
		}
		if !slices.Equal(age, test.age) || table.Lists[0].Fixed != test.fixed {
			t.Errorf("%s: by age %v, fixed %v; want %v, %v", name, age, table.Lists[0].Fixed, test.age, test.fixed)
		}
	}
}

// The members that may have a connection that no director remembers: the oldest owner first.
func TestOldestFirst(t *testing.T) {
	for name, test := range map[string]struct {
		log  []Generation
		dead []uint32
		want []uint32
	}{
		"by generation":           {oneSlot([2]uint32{1, 2}, [2]uint32{3, 9}, [2]uint32{4, 9}), nil, []uint32{4, 3, 1, 2, 9}},
		"since the first time":    {oneSlot([2]uint32{1, 2}, [2]uint32{3, 9}, [2]uint32{1, 9}), nil, []uint32{1, 3, 2, 9}},
		"a backup that was owner": {oneSlot([2]uint32{1, 2}, [2]uint32{2, 9}), nil, []uint32{2, 1, 9}},
		"without the dead":        {oneSlot([2]uint32{1, 2}, [2]uint32{3, 9}, [2]uint32{4, 9}), []uint32{4}, []uint32{3, 1, 2, 9}},
		"with the owner dead":     {oneSlot([2]uint32{1, 2}, [2]uint32{3, 9}), []uint32{1}, []uint32{3, 2, 9}},
	} {
		dead := Gone{}
		for _, m := range test.dead {
			dead[m] = None
		}
		table := Rows(test.log, dead, 8)
		var got []uint32
		for _, position := range table.Lists[0].Oldest {
			got = append(got, table.candidates(0)[position])
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// If a slot has parts of two older slots, the flows of each part have an order of
// their own: its owner first.
func TestOldestOnBothSidesOfABorder(t *testing.T) {
	log := []Generation{
		{Owners: []uint32{1, 1, 1}, Backups: []uint32{2, 2, 2}},
		{Owners: []uint32{3, 4}, Backups: []uint32{5, 5}},
	}
	table := Rows(log, nil, 8)
	if table.Older != 2 {
		t.Fatalf("the older ring has %d slots, want 2", table.Older)
	}
	for slot, want := range [][2]uint32{{3, 3}, {3, 4}, {4, 4}} {
		row, list := table.candidates(slot), table.Lists[table.Slots[slot].Next&^ListFlag]
		if list.Beyond == nil {
			list.Beyond = list.Oldest
		}
		if got := [2]uint32{row[list.Oldest[0]], row[list.Beyond[0]]}; got != want {
			t.Errorf("the oldest of slot %d are %v, want %v", slot, got, want)
		}
	}
	if same := Rows([]Generation{log[0], log[0]}, nil, 8); same.Older != 0 {
		t.Errorf("rings of one size have borders of one with %d slots", same.Older)
	}
}

func TestHeldAt(t *testing.T) {
	log := []Generation{
		{},
		{Owners: []uint32{1, 1, 1}, Backups: []uint32{2, 2, 2}},
		{Owners: []uint32{3, 1, 3}, Backups: []uint32{4, 3, 1}},
		{Owners: []uint32{5, 1, 1}, Backups: []uint32{6, 9, 2}},
	}
	if got := Rows(log, nil, 3); !slices.Equal(got.HeldAt, []int{2}) || got.Held != 1 {
		t.Errorf("%d slots are held, at generations %v, want 1 at [2]", got.Held, got.HeldAt)
	}
	if got := Rows(log, nil, 2); !slices.Equal(got.HeldAt, []int{2, 3}) || got.Held != 2 {
		t.Errorf("%d slots are held, at generations %v, want 2 at [2 3]", got.Held, got.HeldAt)
	}
	if got := Rows(log, nil, 8); got.HeldAt != nil {
		t.Errorf("slots are held at %v with room for all", got.HeldAt)
	}
}

func TestRowsOfNothing(t *testing.T) {
	if got := Rows([]Generation{{}, {}}, nil, 8); got.Slots != nil || got.Lists != nil {
		t.Errorf("a log without members has rows: %v", got)
	}
}

func TestEqualListsAreStoredOnce(t *testing.T) {
	log := []Generation{
		{Owners: []uint32{1, 4, 1, 1}, Backups: []uint32{2, 2, 3, 2}},
		{Owners: []uint32{5, 5, 5, 1}, Backups: []uint32{9, 9, 9, 2}},
	}
	want := Table{
		Slots:  []Slot{{1, ListFlag}, {4, ListFlag}, {1, ListFlag | 1}, {1, 2}},
		Lists:  []List{{Next: []uint32{2, 5, 9}, Oldest: []uint8{2, 0, 1, 3}}, {Next: []uint32{3, 5, 9}, Oldest: []uint8{2, 0, 1, 3}}},
		Shared: 3,
	}
	got := Rows(log, nil, 8)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the rows are %v, want %v", got, want)
	}
}

// history is a log that changes, and which member was first in which slot's row
// because of which generation (by its number).
type history struct {
	log     []Generation
	numbers []int
	dead    Gone
	bound   int
	plain   int               // new connections go to backups, too, in one generation of so many
	firsts  []map[[2]int]bool // by slot: generation, member
}

const historyMembers, historySlots = 12, 31

func newHistory(r *rand.Rand) *history {
	h := &history{bound: 2 + r.IntN(7), plain: []int{1, 2, 1 << 20}[r.IntN(3)], dead: Gone{}, firsts: make([]map[[2]int]bool, historySlots)}
	for slot := range h.firsts {
		h.firsts[slot] = map[[2]int]bool{}
	}
	return h
}

// change adds a generation, takes one out of the log, or lets a member die.
func (h *history) change(r *rand.Rand, number int) {
	switch {
	case r.IntN(3) > 0 || len(h.log) == 0:
		g := randomGeneration(r, historySlots, historyMembers, h.dead)
		g.Both = r.IntN(h.plain) == 0
		h.log = slices.Insert(h.log, 0, g)
		h.numbers = slices.Insert(h.numbers, 0, number)
	case r.IntN(4) > 0 && len(h.log) > 1:
		i := 1 + r.IntN(len(h.log)-1)
		h.log, h.numbers = slices.Delete(h.log, i, i+1), slices.Delete(h.numbers, i, i+1)
	case len(h.dead) < historyMembers-3:
		h.dead[uint32(r.IntN(historyMembers))] = None
	}
}

// newest returns the newest generation whose row would fit.
func (h *history) newest(slot int) int {
	for i, g := range h.log {
		named := map[uint32]bool{g.Owners[slot]: true, g.Backups[slot]: true}
		for _, older := range h.log[i:] {
			named[older.Owners[slot]] = true
			if older.Both {
				named[older.Backups[slot]] = true
			}
		}
		delete(named, None)
		for m := range h.dead {
			delete(named, m)
		}
		if len(named) <= h.bound {
			return i
		}
	}
	return -1
}

// chosen returns the member besides the first that new connections go to.
func (t Table) chosen(slot int, both bool) (member uint32, chosen bool) {
	s := t.Slots[slot]
	switch {
	case !both || s.Next == None:
		return 0, false
	case s.Next&ListFlag == 0:
		return s.Next, true
	}
	list := t.Lists[s.Next&^ListFlag]
	return list.Next[0], !list.Fixed
}

// TestRowsKeepEveryOwner plays random histories: generations come and leave in
// any order, and members die. An owner that was first in a slot's row stays in it
// until the generation or the member goes, and so does a backup that new connections
// went to.
func TestRowsKeepEveryOwner(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	held, chosenBackups := 0, 0
	for range 100 {
		h := newHistory(r)
		for step := range 60 {
			h.change(r, step)
			table := Rows(h.log, h.dead, h.bound)
			held += table.Held
			for slot := range historySlots {
				row := table.candidates(slot)
				if len(row) > h.bound || slices.ContainsFunc(row, func(m uint32) bool { return h.dead.Has(m) }) {
					t.Fatalf("a row of at most %d is %v, dead are %v", h.bound, row, h.dead)
				}
				g := h.newest(slot)
				if owner := h.log[g].Owners[slot]; !h.dead.Has(owner) {
					if row[0] != owner {
						t.Fatalf("the row %v is not that of generation %d: its owner is %d", row, g, owner)
					}
					h.firsts[slot][[2]int{h.numbers[g], int(owner)}] = true
				}
				if second, chosen := table.chosen(slot, h.log[0].Both); chosen {
					chosenBackups++
					if second != h.log[g].Backups[slot] || !h.log[g].Both {
						t.Fatalf("new connections go to %d, and %d is the backup in generation %d", second, h.log[g].Backups[slot], g)
					}
					h.firsts[slot][[2]int{h.numbers[g], int(second)}] = true
				}
				for first := range h.firsts[slot] {
					member := uint32(first[1])
					if !h.dead.Has(member) && slices.Contains(h.numbers, first[0]) && !slices.Contains(row, member) {
						t.Fatalf("step %d: the row %v lost %d, its owner since step %d", step, row, member, first[0])
					}
				}
			}
		}
	}
	if held == 0 || chosenBackups == 0 {
		t.Errorf("the histories held %d slots, and new connections went to %d backups", held, chosenBackups)
	}
}

// randomGeneration is a ring of the living.
func randomGeneration(r *rand.Rand, slots, members int, dead Gone) Generation {
	keys := benchMembers(members, true)
	for m := range keys {
		keys[m].Weight *= uint16(r.IntN(3))
		if dead.Has(uint32(m)) {
			keys[m].Weight = 0
		}
	}
	owners, backups := RingAndBackups(uint32(slots), keys)
	if owners == nil {
		return randomGeneration(r, slots, members, dead)
	}
	return Generation{Owners: owners, Backups: backups}
}
