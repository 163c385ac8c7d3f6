package maglev

// turn is a member's next turn, at virtual time number/weight.
type turn struct {
	number uint64 // 1 for its first
	weight uint64
	member uint32
}

// before compares virtual times exactly (both products fit: a number is at most MaxSize+1, a weight
// has 16 bits). Ties are broken by the members' order, which is that of their keys.
func (a turn) before(b turn) bool {
	if x, y := a.number*b.weight, b.number*a.weight; x != y {
		return x < y
	}
	return a.member < b.member
}

// schedule is the order in which members take turns: a heap of next turns. A
// member's virtual times do not depend on the others, so a schedule without some
// member is the same schedule with its turns left out.
type schedule []turn

func newSchedule(turns []turn) schedule {
	s := schedule(turns)
	for i := len(s)/2 - 1; i >= 0; i-- {
		s.down(i)
	}
	return s
}

// next returns the member whose turn it is, and moves on.
func (s schedule) next() uint32 {
	m := s[0].member
	s[0].number++
	s.down(0)
	return m
}

func (s schedule) down(i int) {
	moving := s[i]
	for {
		child := 2*i + 1
		if child >= len(s) {
			break
		}
		if child+1 < len(s) && s[child+1].before(s[child]) {
			child++
		}
		if !s[child].before(moving) {
			break
		}
		s[i] = s[child]
		i = child
	}
	s[i] = moving
}
