package maglev

// probes are the slots that members found taken, in the order in which they
// looked.
type probes struct {
	slots []uint32
	ends  []uint32 // by turn: the index in slots at which its slots end
}

// meetings are the same by slot: turns[starts[s]:starts[s+1]] are the turns at
// which a member met slot s, taken, in their order.
type meetings struct {
	starts []uint32
	turns  []uint32
}

func (p *probes) bySlot(size uint32) meetings {
	m := meetings{starts: make([]uint32, size+2), turns: make([]uint32, len(p.slots))}
	for _, s := range p.slots {
		m.starts[s+2]++
	}
	for s := range size {
		m.starts[s+2] += m.starts[s+1]
	}
	// starts[s+1] is where slot s begins; it is moved to its end while filling.
	begin := uint32(0)
	for t, end := range p.ends {
		for _, s := range p.slots[begin:end] {
			m.turns[m.starts[s+1]] = uint32(t)
			m.starts[s+1]++
		}
		begin = end
	}
	return m
}

// first returns the first turn at which a slot was met, or None.
func (m *meetings) first(slot uint32) uint32 {
	if m.starts[slot] == m.starts[slot+1] {
		return None
	}
	return m.turns[m.starts[slot]]
}

// played is a turn of the ring with all members.
type played struct {
	member uint32
	slot   uint32 // claimed
	next   uint32 // the member's next turn, or None
	// exposed is the member's first turn, this one or later, whose slot another member met before
	// the member's next turn; its last turn if there is none.
	exposed uint32
}

// record is a ring, and how it was filled.
type record struct {
	fill   *fill
	turns  []played
	first  []uint32 // each member's first turn, or None
	played []uint64 // how many turns each member had
	met    meetings
	owners []uint32 // member of each slot
}

func newRecord(f *fill) *record {
	failed := probes{ends: make([]uint32, 0, f.size)}
	claims := f.run(&failed)
	r := &record{
		fill:   f,
		turns:  make([]played, f.size),
		first:  make([]uint32, len(f.members)),
		played: make([]uint64, len(f.members)),
		met:    failed.bySlot(f.size),
		owners: f.owners(claims),
	}
	for m := range r.first {
		r.first[m] = None
	}
	for t := len(claims) - 1; t >= 0; t-- {
		m := f.turns[t]
		next := r.first[m]
		exposed := uint32(t)
		if next != None && r.met.first(claims[t]) > next {
			exposed = r.turns[next].exposed
		}
		r.turns[t] = played{member: m, slot: claims[t], next: next, exposed: exposed}
		r.first[m] = uint32(t)
		r.played[m]++
	}
	return r
}
