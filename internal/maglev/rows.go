package maglev

import (
	"encoding/binary"
	"slices"
)

// Generation is the ring of one version of a service: who owns each slot, and
// who would without its owner ([RingAndBackups]). Members are numbers that mean
// the same in every generation of a log, like their positions in the list of all
// members of the service, new and old.
type Generation struct {
	Owners  []uint32
	Backups []uint32
}

// ListFlag in Slot.Next says that the other bits are an index into Table.Lists.
const ListFlag = uint32(1) << 31

// Slot is a slot's row: its owner and what follows it, which is the backup where
// no other member owned the slot, or None, or ListFlag | index of a list. So
// exactly the slots with a list have connections of more than one member.
type Slot struct {
	Owner uint32
	Next  uint32
}

// List is what follows a slot's owner where connections may be of more than one
// member.
type List struct {
	Next []uint32
	// Oldest has the positions in the row (0 is the owner) in the order in which a
	// connection of unknown age is likely to be theirs: by the generation that made a
	// member the owner for the first time, the oldest first, and then a backup that
	// never was.
	Oldest []uint8
}

// Table is the rows of all slots. Equal lists are stored once.
type Table struct {
	Slots []Slot
	Lists []List
	Held  int // slots that a newer generation would have moved
}

// Rows returns the candidates of each slot, at most bound (2 or more), from a
// log of generations, newest first, whose rings have the same size. A generation
// without members (nil owners) adds nothing.
//
// A row is the slot's owner in the newest generation, its backup there, and then
// its owners in the older generations, newest first, everybody once. The dead
// are in no row: where the owner is dead its backup is first, and where that is
// dead too the owner before. A row without anybody has owner None.
//
// Where that would be more than bound candidates the slot is held: its row is
// that of the newest generation with which it is not, as if the newer ones were
// still to come. A generation that leaves the log, or a member that dies, can
// only make the row that of a newer generation, and a row names the owners of
// all generations up to its own. So an owner stays in the row while the
// generation lives whose row had him first.
func Rows(log []Generation, dead map[uint32]bool, bound int) Table {
	log = slices.DeleteFunc(slices.Clone(log), func(g Generation) bool { return len(g.Owners) == 0 })
	if len(log) == 0 {
		return Table{}
	}
	b := rowBuilder{log: log, dead: dead, bound: bound, lists: map[string]uint32{}}
	b.table.Slots = make([]Slot, len(log[0].Owners))
	for slot := range b.table.Slots {
		b.table.Slots[slot] = b.slot(slot)
	}
	return b.table
}

type rowBuilder struct {
	log   []Generation
	dead  map[uint32]bool
	bound int
	row   []uint32
	table Table
	lists map[string]uint32 // a list as bytes, its index
	key   []byte
	old   []uint8
}

func (b *rowBuilder) slot(slot int) Slot {
	for g := range b.log {
		shared := b.build(slot, b.log[g:])
		if len(b.row) > b.bound {
			continue
		}
		if b.log[g].Owners[slot] != b.log[0].Owners[slot] {
			b.table.Held++
		}
		return b.compact(slot, b.log[g:], shared)
	}
	return Slot{None, None} // not reached: the oldest row has at most two candidates
}

// build makes the row of one slot, and reports whether a living member besides
// the first candidate owned it.
func (b *rowBuilder) build(slot int, log []Generation) (shared bool) {
	b.row = b.row[:0]
	b.add(log[0].Owners[slot])
	b.add(log[0].Backups[slot])
	for _, g := range log {
		owner := g.Owners[slot]
		b.add(owner)
		shared = shared || !b.dead[owner] && owner != b.row[0]
	}
	return shared
}

// add appends a member to the row, unless it is dead or there already.
func (b *rowBuilder) add(member uint32) {
	if member == None || b.dead[member] {
		return
	}
	if !slices.Contains(b.row, member) {
		b.row = append(b.row, member)
	}
}

// byAge orders the positions in the row, see [List].
func (b *rowBuilder) byAge(slot int, log []Generation) {
	b.old = b.old[:0]
	note := func(member uint32) {
		position := uint8(slices.Index(b.row, member)) // 255 for the dead
		if int(position) < len(b.row) && !slices.Contains(b.old, position) {
			b.old = append(b.old, position)
		}
	}
	for _, g := range slices.Backward(log) {
		note(g.Owners[slot])
	}
	for _, member := range b.row {
		note(member)
	}
}

// compact turns the row into a slot.
func (b *rowBuilder) compact(slot int, log []Generation, shared bool) Slot {
	switch {
	case len(b.row) == 0:
		return Slot{None, None}
	case len(b.row) == 1:
		return Slot{b.row[0], None}
	case !shared:
		return Slot{b.row[0], b.row[1]}
	}
	b.byAge(slot, log)
	b.key = append(b.key[:0], b.old...)
	for _, m := range b.row[1:] {
		b.key = binary.LittleEndian.AppendUint32(b.key, m)
	}
	index, known := b.lists[string(b.key)]
	if !known {
		index = uint32(len(b.table.Lists))
		b.lists[string(b.key)] = index
		b.table.Lists = append(b.table.Lists, List{slices.Clone(b.row[1:]), slices.Clone(b.old)})
	}
	return Slot{b.row[0], ListFlag | index}
}
