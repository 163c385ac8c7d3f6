package maglev

// playOn gives out slots that are spare after the last turn, in further turns, until the slots of
// the removed member have new owners.
func (r *replay) playOn() {
	f := r.fill
	schedule := newSchedule(r.nextTurns())
	left := make([]uint32, 0, len(r.spared))
	for _, slot := range r.spared {
		if r.spare[slot].is {
			left = append(left, slot)
		}
	}
	position := make([]uint32, len(f.members)) // that each member walked to
	for m := range position {
		position[m] = f.members[m].offset
	}
	for spare := len(left); r.missing > 0; spare-- {
		m := schedule.next()
		var slot uint32
		if uint64(spare)*uint64(spare) > uint64(f.size) {
			// size/spare steps, on average, are fewer than there are slots to compare.
			slot = r.walk(m, position[m])
			position[m] = slot
		} else {
			left, slot = r.best(m, left)
		}
		r.take(slot, m)
	}
}

// nextTurns returns the turns that follow the last one, without those of gone.
func (r *replay) nextTurns() []turn {
	turns := make([]turn, 0, len(r.fill.members))
	for m, member := range r.fill.members {
		if uint32(m) != r.gone {
			turns = append(turns, turn{r.played[m] + 1, member.weight, uint32(m)})
		}
	}
	return turns
}

// walk follows a member's permutation from where it last stopped to the next
// spare slot.
func (r *replay) walk(m, slot uint32) uint32 {
	for !r.spare[slot].is {
		slot = r.fill.step(slot, r.fill.members[m].skip)
	}
	return slot
}

// best returns the slots that are still spare, and the one that a member likes best.
func (r *replay) best(m uint32, slots []uint32) (still []uint32, best uint32) {
	still = slots[:0]
	rank := uint64(r.fill.size)
	for _, slot := range slots {
		if !r.spare[slot].is {
			continue
		}
		still = append(still, slot)
		if k := r.rank(m, slot); k < rank {
			rank, best = k, slot
		}
	}
	return still, best
}
