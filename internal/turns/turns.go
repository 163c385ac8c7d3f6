// Package turns says in which order members of different weights take turns, so that each
// one's are spread evenly: weighted round-robin.
//
// It is the chairman assignment of Tijdeman, "The chairman assignment problem" (Discrete
// Mathematics 32, 1980): after any number of turns each of n members has had the share of
// them that its weight asks for, to within 1 - 1/(2n-2) turns, and no order does better for
// all weights. It is a pure function of its arguments: every director computes the same.
package turns

import (
	"cmp"
	"container/heap"
	"slices"
)

// Order returns the member of each turn, as positions in weights, until the order begins again. A
// member without weight has none. There are no more turns than most, unless there are more members:
// with more weight than that, shares are rounded to whole turns, and no member has less than one.
func Order(weights []uint16, most int) []uint32 {
	counts, total := shares(weights, most)
	if total == 0 {
		return nil
	}
	var members []member
	for i, count := range counts {
		if count > 0 {
			members = append(members, member{position: uint32(i), turns: count})
		}
	}
	return assign(members, total)
}

// Once returns each member that has a weight, once.
func Once(weights []uint16) (order []uint32) {
	for i, w := range weights {
		if w > 0 {
			order = append(order, uint32(i))
		}
	}
	return order
}

// shares returns how many turns each member has, and all of them together: the weights
// without their common divisor, or parts of most by largest remainders.
func shares(weights []uint16, most int) (counts []int64, total int64) {
	counts = make([]int64, len(weights))
	divisor := int64(0)
	for i, w := range weights {
		counts[i] = int64(w)
		total += counts[i]
		divisor = gcd(divisor, counts[i])
	}
	if total == 0 {
		return nil, 0
	}
	if total/divisor <= int64(most) {
		for i := range counts {
			counts[i] /= divisor
		}
		return counts, total / divisor
	}
	return rounded(counts, total, int64(most))
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// rounded divides turns among weights, so that the largest remainders get what is left.
func rounded(weights []int64, total, turns int64) (counts []int64, given int64) {
	counts = make([]int64, len(weights))
	var left []remainder
	for i, w := range weights {
		if w == 0 {
			continue
		}
		counts[i] = max(1, w*turns/total)
		given += counts[i]
		if w*turns >= total { // else it has more than its share
			left = append(left, remainder{i, w * turns % total})
		}
	}
	slices.SortFunc(left, func(a, b remainder) int {
		return cmp.Or(cmp.Compare(b.left, a.left), cmp.Compare(a.position, b.position))
	})
	for _, r := range left[:min(int64(len(left)), max(0, turns-given))] {
		counts[r.position]++
		given++
	}
	return counts, given
}

// member is a member that takes turns.
type member struct {
	position uint32
	turns    int64 // of one order
	had      int64 // of those so far
	release  int64 // the first turn that its next may be
}

// assign gives turns, each to the member whose next may be now and is due first.
func assign(members []member, total int64) []uint32 {
	n := int64(len(members))
	if n == 1 {
		order := make([]uint32, total)
		for i := range order {
			order[i] = members[0].position
		}
		return order
	}
	parts := 2*n - 2 // a turn's, in which distances are counted
	waiting := &queue{less: func(a, b *member) bool { return a.release < b.release }}
	// Due at ((parts-1) + parts*had) * total / (parts * turns).
	ready := &queue{less: func(a, b *member) bool {
		of, than := (parts-1+parts*a.had)*b.turns, (parts-1+parts*b.had)*a.turns
		return of < than || of == than && a.position < b.position
	}}
	wait := func(m *member) {
		m.release = (total*(1+parts*m.had) + parts*m.turns - 1) / (parts * m.turns)
		heap.Push(waiting, m)
	}
	for i := range members {
		wait(&members[i])
	}
	order := make([]uint32, 0, total)
	for turn := int64(1); turn <= total; turn++ {
		for waiting.Len() > 0 && waiting.members[0].release <= turn {
			heap.Push(ready, heap.Pop(waiting))
		}
		m := heap.Pop(ready).(*member)
		order = append(order, m.position)
		if m.had++; m.had < m.turns {
			wait(m)
		}
	}
	return order
}

// queue is a heap of members.
type queue struct {
	members []*member
	less    func(a, b *member) bool
}

func (q *queue) Len() int           { return len(q.members) }
func (q *queue) Less(i, j int) bool { return q.less(q.members[i], q.members[j]) }
func (q *queue) Swap(i, j int)      { q.members[i], q.members[j] = q.members[j], q.members[i] }
func (q *queue) Push(m any)         { q.members = append(q.members, m.(*member)) }

func (q *queue) Pop() any {
	last := len(q.members) - 1
	m := q.members[last]
	q.members = q.members[:last]
	return m
}

// remainder is what a member's whole turns leave of its share.
type remainder struct {
	position int
	left     int64
}
