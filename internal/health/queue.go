package health

import "container/heap"

// queue has the targets that wait for their next probe, the next one first.
type queue []*target

// waitsNot is the place of a target that is not in the queue.
const waitsNot = -1

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements [heap.Interface].
func (q *queue) Push(x any) {
	t := x.(*target)
	t.place = len(*q)
	*q = append(*q, t)
}

// Pop implements [heap.Interface].
func (q *queue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	t.place = waitsNot
	return t
}

// add puts a target in, or to another place.
func (q *queue) add(t *target) {
	if t.place == waitsNot {
		heap.Push(q, t)
		return
	}
	heap.Fix(q, t.place)
}

// drop takes a target out if it is there.
func (q *queue) drop(t *target) {
	if t.place != waitsNot {
		heap.Remove(q, t.place)
	}
}

func (q *queue) first() *target { return heap.Pop(q).(*target) }
