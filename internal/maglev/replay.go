package maglev

import (
	"cmp"
	"math/bits"
	"slices"
)

// replay finds the ring without one member from the ring with it, by following only the changes.
//
// Both rings are filled by the same turns in the same order, but one of them without the turns of
// the removed member. At every turn the slots that are free without it are those that are free with
// it, and some more: the spare ones. A slot becomes spare at the turn at which it was claimed,
// because its claimer is removed or took another spare slot instead. It stays spare until a member
// likes it better than the slot that it claimed. These are the members that meet it (find it
// taken), from that turn on, and its claimer at later turns.
//
// A member meets slots in the order in which it likes them. So the spare slots that it has met form
// a queue: at each of its turns it takes the first that is still spare, and the slot that it
// claimed at that turn joins the queue's end. Slots that are still spare after the last turn are
// given out in further turns.
//
// A member whose queue holds only the slot of its last turn goes on one slot behind, until another
// member meets such a slot or it meets another spare one. These turns are not played: the member is
// put at the first turn whose slot is exposed, and taken back if it meets a spare slot before that.
type replay struct {
	*record
	inverse []uint64 // of each member's skip, modulo the size
	backups []uint32 // member of each slot, as far as replayed

	// State of one replay; all of it is empty between replays.
	gone    uint32   // the member left out
	missing int      // slots of gone whose new owner is not known yet
	spare   []spare  // by slot
	spared  []uint32 // slots whose spare is in use
	agenda  []uint64 // bit per turn: a member may take a spare slot
	meets   []uint32 // by turn: 1 + the first of the spare slots met there
	queues  []queue  // by member: the spare slots that it has met
	queued  []uint32 // members whose queues are in use

	scratch []uint32 // result of meeting
}

// spare is a slot's state in one replay.
type spare struct {
	used    bool
	is      bool
	meeting uint32 // index in met.turns of the meeting after the awaited one
	link    uint32 // 1 + the next of the spare slots met at the same turn
}

// queue is a member's queue of the spare slots that it has met. Slots that another member took
// meanwhile are still in it.
type queue struct {
	slots []uint32
	head  int
	ahead uint32 // 1 + the turn that the member was put at, 0: it was not
}

func newReplay(f *fill) *replay {
	r := &replay{
		record:  newRecord(f),
		inverse: make([]uint64, len(f.members)),
		backups: make([]uint32, f.size),
		spare:   make([]spare, f.size),
		agenda:  make([]uint64, f.size/64+1),
		meets:   make([]uint32, f.size),
		queues:  make([]queue, len(f.members)),
	}
	for m := range r.inverse {
		r.inverse[m] = f.inverse(f.members[m].skip)
	}
	return r
}

// replay returns owners and backups.
func (f *fill) replay() (owners, backups []uint32) {
	r := newReplay(f)
	for m := range f.members {
		r.without(uint32(m))
		steps.Add(1)
	}
	return r.owners, r.backups
}

// without fills in the backups of the slots that a member owns.
func (r *replay) without(gone uint32) {
	r.gone = gone
	r.missing = 0
	for t := r.first[gone]; t != None; t = r.turns[t].next {
		r.backups[r.turns[t].slot] = None
		r.missing++
	}
	if len(r.fill.members) == 1 {
		return
	}
	for t := r.first[gone]; t != None; t = r.turns[t].next {
		r.free(r.turns[t].slot)
	}
	for word := range r.agenda {
		for r.agenda[word] != 0 && r.missing > 0 {
			bit := bits.TrailingZeros64(r.agenda[word])
			r.agenda[word] &^= 1 << bit
			r.play(uint32(word*64 + bit))
		}
	}
	if r.missing > 0 {
		r.playOn()
	}
	r.reset()
}

// play plays a turn at which a member may take a spare slot.
func (r *replay) play(t uint32) {
	turn := &r.turns[t]
	met := r.meeting(t)
	if turn.member == r.gone {
		r.awaitAll(met)
		return
	}
	q := &r.queues[turn.member]
	if len(q.slots) == 0 {
		r.queued = append(r.queued, turn.member)
	}
	if q.ahead > t {
		// Taken back: the member has only the slot before this one, and takes it.
		r.spare[q.slots[0]].is = false
		q.clear()
		q.slots = append(q.slots, met...)
	} else {
		q.ahead = 0
		q.slots = append(q.slots, met...)
		slot, found := q.pop(r.spare)
		if !found {
			return
		}
		r.take(slot, turn.member)
	}
	r.awaitAll(met)
	if q.head == len(q.slots) {
		q.clear()
		q.ahead = turn.exposed + 1
		turn = &r.turns[turn.exposed]
	}
	r.free(turn.slot)
	q.slots = append(q.slots, turn.slot)
	if turn.next != None {
		r.agenda[turn.next/64] |= 1 << (turn.next % 64)
	}
}

// meeting returns the spare slots that a turn's member meets there, in the order in which it likes
// them.
func (r *replay) meeting(t uint32) []uint32 {
	met := r.scratch[:0]
	for s := r.meets[t]; s != 0; s = r.spare[s-1].link {
		if r.spare[s-1].is {
			met = append(met, s-1)
		}
	}
	r.meets[t] = 0
	r.scratch = met
	if len(met) > 1 {
		m := r.turns[t].member
		slices.SortFunc(met, func(a, b uint32) int { return cmp.Compare(r.rank(m, a), r.rank(m, b)) })
	}
	return met
}

// rank returns how many slots a member likes better than the given one.
func (r *replay) rank(m, slot uint32) uint64 {
	size := uint64(r.fill.size)
	return (uint64(slot) + size - uint64(r.fill.members[m].offset)) * r.inverse[m] % size
}

// free makes a slot spare.
func (r *replay) free(slot uint32) {
	s := &r.spare[slot]
	s.is = true
	if s.used {
		return // became spare too early once, and is still awaited
	}
	s.used = true
	s.meeting = r.met.starts[slot]
	r.spared = append(r.spared, slot)
	r.await(slot)
}

// await enters in the agenda the turn at which a spare slot is next met.
func (r *replay) await(slot uint32) {
	s := &r.spare[slot]
	if s.meeting == r.met.starts[slot+1] {
		return
	}
	t := r.met.turns[s.meeting]
	s.meeting++
	s.link, r.meets[t] = r.meets[t], slot+1
	r.agenda[t/64] |= 1 << (t % 64)
}

// awaitAll awaits those of the slots that are still spare.
func (r *replay) awaitAll(slots []uint32) {
	for _, slot := range slots {
		if r.spare[slot].is {
			r.await(slot)
		}
	}
}

// take gives a spare slot to a member.
func (r *replay) take(slot, member uint32) {
	r.spare[slot].is = false
	if r.owners[slot] == r.gone {
		r.backups[slot] = member
		r.missing--
	}
}

// reset forgets a replay.
func (r *replay) reset() {
	for word, left := range r.agenda {
		for ; left != 0; left &= left - 1 {
			r.meets[word*64+bits.TrailingZeros64(left)] = 0
		}
		r.agenda[word] = 0
	}
	for _, slot := range r.spared {
		r.spare[slot] = spare{}
	}
	for _, m := range r.queued {
		r.queues[m].clear()
	}
	r.spared, r.queued = r.spared[:0], r.queued[:0]
}

// pop takes out the first slot that is still spare.
func (q *queue) pop(spare []spare) (slot uint32, found bool) {
	for q.head < len(q.slots) {
		slot = q.slots[q.head]
		q.head++
		if spare[slot].is {
			return slot, true
		}
	}
	q.clear()
	return 0, false
}

func (q *queue) clear() { q.slots, q.head, q.ahead = q.slots[:0], 0, 0 }
