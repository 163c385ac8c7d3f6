package turns

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

// remainders is a heap, the largest first.
type remainders []remainder

func (r remainders) Len() int { return len(r) }
func (r remainders) Less(i, j int) bool {
	return r[i].left > r[j].left || r[i].left == r[j].left && r[i].position < r[j].position
}
func (r remainders) Swap(i, j int) { r[i], r[j] = r[j], r[i] }
func (r *remainders) Push(x any)   { *r = append(*r, x.(remainder)) }

func (r *remainders) Pop() any {
	last := len(*r) - 1
	x := (*r)[last]
	*r = (*r)[:last]
	return x
}
