package maglev

import (
	"encoding/binary"
	"slices"
)

// Generation is the ring of one version of a service: each slot's owner and backup
// ([RingAndBackups]). Members are numbers that mean the same in every generation of a log, like
// their positions in the list of all members of the service, new and old.
//
// Owner and backup are None in a slot in which no connection needs the generation. If a log's
// newest generation with a living member has all of its slots, every row has an owner, except for
// slots whose owner and backup there are both dead.
type Generation struct {
	Owners  []uint32
	Backups []uint32
	// Both says that new connections go to owners and backups alike, instead of only to owners
	// while these are up.
	Both bool
	// Coming says that it places no connections yet: an older generation that is not coming places
	// them, and rows name this one's owners.
	Coming bool
}

// Gone are members that are gone, each with its new number if it came back, or None. A member that
// came back has two numbers, because its earlier connections have ended.
type Gone map[uint32]uint32

// Has reports whether a member is gone.
func (g Gone) Has(member uint32) bool {
	_, gone := g[member]
	return gone
}

// ListFlag in Slot.Next says that the other bits are an index into Table.Lists.
const ListFlag = uint32(1) << 31

// Slot is a slot's row: its owner and what follows it, which is the one other candidate, or None,
// or ListFlag | index of a list. A slot has a list if its connections may belong to members other
// than its owner and its backup, or to the backup because it was the owner, or if the list is
// [List.Fixed].
type Slot struct {
	Owner uint32
	Next  uint32
}

// List is what follows a slot's owner if connections may belong to more than one member.
type List struct {
	Next []uint32
	// Oldest has the positions in the row (0 is the owner) in the order in which a connection of
	// unknown age is likely to belong to them: by the generation that first gave a member
	// connections (as the owner, or as its backup in one with Both), the oldest first, and then
	// backups that never got any.
	Oldest []uint8
	// Beyond has the same for connections beyond the border, in a slot that lies on one of
	// Table.Older; nil: it is the same order.
	Beyond []uint8
	// Fixed says that new connections go only to the slot's owner while it is up, though those of
	// the newest generation go to backups, too: the member after the owner is not its backup in a
	// generation with Both.
	Fixed bool
}

// Table is the rows of all slots. Equal lists are stored once.
type Table struct {
	Slots  []Slot
	Lists  []List
	Shared int // slots with connections of several members: see List
	Held   int // slots that a newer generation would have moved
	// Older is the size of the oldest ring on whose borders slots lie; 0: none do. A hash
	// is beyond the border of its slot when it is in another slot of that ring than the
	// first hash of its slot.
	Older uint32
	// HeldAt has the generations, by their positions in the log, whose rows some slots have
	// although newer generations have members. It is in order.
	HeldAt []int
}

// Rows returns the candidates of each slot, at most bound (2 or more; 3 or more if sizes differ),
// from a log of generations, newest first. A generation without members (nil owners) adds nothing.
//
// A row is the slot's owner in the newest generation, its backup there, and then its owners in the
// older generations, newest first, each once. Dead members are in no row: if the owner is dead its
// backup is first, and if that is dead too, the previous owner. A row without members has owner
// None.
//
// The backups of the older generations follow, newest first, if there is room: a connection that
// began while a director saw the owner down is theirs. Those of a generation with Both are in the
// row like its owners. Members that were owners, or such backups, before they went and came back
// are last, newest first, and also only if there is room: a director that did not learn of it at
// the time, because its process was down, kept them as owners all the while, and has opened
// connections with them since they came back.
//
// If that would be more than bound candidates, not counting these, the slot is held: its row is
// that of the newest generation with which it is not, as if the newer ones were still to come. When
// a generation leaves the log, or a member dies, the row can only become that of a newer
// generation, and a row names the owners of all generations up to its own. So an owner stays in the
// row while the generation lives whose row it was first in.
//
// Coming generations change no slot's first candidate: it is that of the newest generation that is
// not coming, while that candidate lives. So a director that learns of a generation late, but
// before others place connections by it, has all of their backends in its rows. The newest
// generation that is not coming has the size of those that are.
//
// If rings differ in size the table has a whole multiple of the newest one's slots, at least as
// many as the largest has ([tableSize]). A slot may then lie on the border of two slots of an older
// ring, and its row names the owners of both. It must not be held there, because only one of them
// would be its owner for a while: a log is safe if at most bound/2 - 1 generations had the older
// size when the size changed, and one with Both counts as two.
func Rows(log []Generation, gone Gone, bound int) Table {
	return TierRows(log, nil, gone, bound, bound)
}

// Tier is another tier of a service: its generations in the same log, newest first.
type Tier struct {
	Log []Generation
	// Own is the bound on the candidates that the tier's own rows must name: where these are full, it goes on by an older
	// generation.
	Own int
	// Before says that a connection of unknown age is tried in this tier first.
	Before bool
}

// TierRows returns the rows of one tier of a service, as [Rows] does. After the tier's own members each row names those of
// the other tiers, because another director may use another tier at that moment: first the one on which each other tier
// places the slot's connections, and then all others that the other tier's own row must name. They own no slot, hold none,
// and are last of all that new connections go to. Older backups of all tiers are last, where there is room.
//
// What must be named of the tier's own generations is at most own candidates, and the row has at most bound: it names all if
// that is not less than what the tiers have together. Where sizes differ, own is at least what a change of size needs, even if
// that leaves too little room for other tiers.
func TierRows(log []Generation, others []Tier, gone Gone, own, bound int) Table {
	size := tableSize(log, others)
	if size == 0 {
		return Table{}
	}
	b := rowBuilder{log: layersOf(log, size), gone: gone, bound: own, most: bound, lists: map[string]uint32{}}
	b.noteBorders(b.log)
	for _, o := range others {
		if layers := layersOf(o.Log, size); len(layers) > 0 {
			b.others = append(b.others, newOtherTier(layers, o, gone, bound))
			b.noteBorders(layers)
		}
	}
	b.makeRoom()
	b.chooses = log[0].Both
	b.heads = make([]bool, len(log))
	b.table.Slots = make([]Slot, len(b.log[0].Owners))
	for slot := range b.table.Slots {
		b.table.Slots[slot] = b.slot(slot)
	}
	for number, head := range b.heads {
		if head && number > b.log[0].number {
			b.table.HeldAt = append(b.table.HeldAt, number)
		}
	}
	return b.table
}

type rowBuilder struct {
	log    []layer
	others []otherTier
	gone   Gone
	bound  int // on what must be named of the log's own generations
	most   int // on the row
	row    []uint32
	heads  []bool // by generation: some slot has its row
	// chooses says that the newest generation, with members or without, has Both.
	chooses bool
	table   Table
	lists   map[string]uint32 // a list as bytes, its index
	key     []byte
	old     []uint8
	past    []uint8 // the same beyond the border
}

// otherTier is a tier that rows name beside their own. Its builder makes what its own rows must name.
type otherTier struct {
	log    []layer
	rows   *rowBuilder
	named  []uint32 // in the slot that is being made
	before bool
}

func newOtherTier(log []layer, of Tier, gone Gone, bound int) otherTier {
	rows := &rowBuilder{log: log, gone: gone, bound: of.Own, most: bound}
	rows.makeRoom()
	return otherTier{log: log, rows: rows, before: of.Before}
}

// places returns the member on which the tier places a slot's connections while all are up, or None, and all members that the
// tier's own row must name.
func (o *otherTier) places(slot int) (first uint32, all []uint32) {
	rows := o.rows
	row, at, _ := rows.fits(slot)
	if row < 0 {
		return None, nil
	}
	if len(rows.row) == 0 {
		rows.addBackups(slot, o.log[row+1:])
	}
	switch {
	case at > row:
		return o.log[at].Owners[slot], rows.row
	case len(rows.row) > 0:
		return rows.row[0], rows.row
	}
	return None, nil
}

// noteBorders notes which older ring's borders the table's slots lie on.
func (b *rowBuilder) noteBorders(layers []layer) {
	for _, g := range layers {
		if g.border {
			b.table.Older = uint32(g.slots)
		}
	}
}

// makeRoom makes the bound on the tier's own candidates at least what a slot on a border must name.
func (b *rowBuilder) makeRoom() {
	for _, g := range b.log {
		switch {
		case g.border && g.Both:
			b.bound = max(b.bound, min(6, b.most))
		case g.border:
			b.bound = max(b.bound, min(4, b.most))
		}
	}
}

func (b *rowBuilder) slot(slot int) Slot {
	g, head, shared := b.fits(slot)
	if g < 0 {
		// The oldest row has at most three candidates: no connection needs any generation here.
		return Slot{None, None}
	}
	if b.log[g].Owners[slot] != b.log[0].Owners[slot] {
		b.table.Held++
	}
	if head > g {
		shared = b.putFirst(slot, &b.log[head], b.log[g:])
	}
	b.heads[b.log[head].number] = true
	if len(b.row) == 0 { // none of another tier is first if there is one of this tier
		b.addBackups(slot, b.log[g+1:])
	}
	shared = b.addOthers(slot) || shared
	b.addBackups(slot, b.log[g+1:])
	for _, o := range b.others {
		b.addBackups(slot, o.log)
	}
	b.addReturned(slot, b.log[g:])
	for _, o := range b.others {
		b.addReturned(slot, o.log)
	}
	return b.compact(slot, b.log[g:], &b.log[head], shared)
}

// fits makes the slot's row of the newest generation whose row has room, and returns that generation's layer, the layer that
// places connections, and what build does; -1: there is none.
func (b *rowBuilder) fits(slot int) (row, head int, shared bool) {
	for g := range b.log {
		if b.log[g].border || b.log[g].Owners[slot] == None {
			continue
		}
		if shared = b.build(slot, b.log[g:]); len(b.row) <= b.bound {
			return g, b.placing(slot, g), shared
		}
	}
	return -1, -1, false
}

// build makes the row of one slot, and reports whether a living member besides
// the first candidate owned it.
func (b *rowBuilder) build(slot int, log []layer) (shared bool) {
	b.row = b.row[:0]
	b.add(log[0].Owners[slot])
	b.add(log[0].Backups[slot])
	for _, g := range log {
		owner := g.Owners[slot]
		b.add(owner)
		shared = shared || owner != None && !b.gone.Has(owner) && owner != b.row[0]
		if g.Both {
			b.add(g.Backups[slot])
		}
	}
	return shared
}

// placing returns which layer places the slot's connections, if its row is that of a layer and
// older ones, and has been built. A layer whose owner is gone does not: its backup might not be
// found again when other generations have left.
func (b *rowBuilder) placing(slot, row int) int {
	for g := row; g < len(b.log) && b.log[g].slots == b.log[row].slots; g++ {
		if l := &b.log[g]; !l.Coming && l.Owners[slot] != None {
			if slices.Contains(b.row, l.Owners[slot]) {
				return g
			}
			break
		}
	}
	return row
}

// putFirst makes a layer's candidate the first of the row, and reports what build does. No member
// leaves the row, and the layer's backup is added if there is room.
func (b *rowBuilder) putFirst(slot int, head *layer, log []layer) (shared bool) {
	named := slices.Clone(b.row)
	b.row = append(b.row[:0], head.Owners[slot])
	if len(named) < b.bound || slices.Contains(named, head.Backups[slot]) {
		b.add(head.Backups[slot])
	}
	for _, member := range named {
		b.add(member)
	}
	for _, g := range log {
		owner := g.Owners[slot]
		shared = shared || owner != None && !b.gone.Has(owner) && owner != b.row[0]
	}
	return shared
}

// addOthers adds what the row names of other tiers, and reports whether that is anything.
func (b *rowBuilder) addOthers(slot int) bool {
	own := len(b.row)
	room := func(member uint32) {
		if len(b.row) < b.most {
			b.add(member)
		}
	}
	for i := range b.others {
		first, all := b.others[i].places(slot)
		b.others[i].named = all
		room(first)
	}
	for i := range b.others {
		for _, member := range b.others[i].named {
			room(member)
		}
	}
	return len(b.row) > own
}

func (b *rowBuilder) addBackups(slot int, log []layer) {
	for _, g := range log {
		if len(b.row) == b.most {
			return
		}
		b.add(g.Backups[slot])
	}
}

func (b *rowBuilder) addReturned(slot int, log []layer) {
	for _, g := range log {
		if len(b.row) == b.most {
			return
		}
		if again, gone := b.gone[g.Owners[slot]]; gone {
			b.add(again)
		}
		if again, gone := b.gone[g.Backups[slot]]; gone && g.Both && len(b.row) < b.most {
			b.add(again)
		}
	}
}

// add appends a member to the row, unless it is dead or there already.
func (b *rowBuilder) add(member uint32) {
	if member == None || b.gone.Has(member) {
		return
	}
	if !slices.Contains(b.row, member) {
		b.row = append(b.row, member)
	}
}

// byAge orders the positions in the row, see [List], on one side of the border.
func (b *rowBuilder) byAge(order []uint8, slot int, log []layer, beyond bool) []uint8 {
	order = order[:0]
	note := func(member uint32) {
		position := uint8(slices.Index(b.row, member)) // 255 for the dead
		if int(position) < len(b.row) && !slices.Contains(order, position) {
			order = append(order, position)
		}
	}
	layers := func(log []layer) {
		for i, g := range slices.Backward(log) {
			halved := i+1 < len(log) && log[i+1].border // the other half is the next layer
			if uint32(g.slots) == b.table.Older && (g.border && !beyond || halved && beyond) {
				continue // of the other side of the border
			}
			note(g.Owners[slot])
			if g.Both {
				note(g.Backups[slot])
			}
		}
	}
	for _, o := range b.others {
		if o.before {
			layers(o.log)
		}
	}
	layers(log)
	for _, member := range b.row {
		note(member)
	}
	return order
}

// fixed reports whether a row's second candidate must not be chosen for new connections: it may be
// an older owner that took a dead backup's place, or the backup in a generation whose backups need
// not be in later rows.
func (b *rowBuilder) fixed(slot int, head *layer) bool {
	return b.chooses && !(head.Both && b.row[0] == head.Owners[slot] && b.row[1] == head.Backups[slot])
}

// compact turns the row into a slot.
func (b *rowBuilder) compact(slot int, log []layer, head *layer, shared bool) Slot {
	switch len(b.row) {
	case 0:
		return Slot{None, None}
	case 1:
		return Slot{b.row[0], None}
	}
	fixed := b.fixed(slot, head)
	if !shared && !fixed && len(b.row) == 2 {
		if slices.ContainsFunc(log, func(g layer) bool { return g.Both && g.Backups[slot] != None }) {
			b.table.Shared++
		}
		return Slot{b.row[0], b.row[1]}
	}
	b.table.Shared++
	b.old = b.byAge(b.old, slot, log, false)
	b.past = b.byAge(b.past, slot, log, true)
	b.key = append(append(b.key[:0], b.old...), b.past...)
	if fixed {
		b.key = append(b.key, 255) // no position
	}
	for _, m := range b.row[1:] {
		b.key = binary.LittleEndian.AppendUint32(b.key, m)
	}
	index, known := b.lists[string(b.key)]
	if !known {
		index = uint32(len(b.table.Lists))
		b.lists[string(b.key)] = index
		list := List{Next: slices.Clone(b.row[1:]), Oldest: slices.Clone(b.old), Fixed: fixed}
		if !slices.Equal(b.past, b.old) {
			list.Beyond = slices.Clone(b.past)
		}
		b.table.Lists = append(b.table.Lists, list)
	}
	return Slot{b.row[0], ListFlag | index}
}
