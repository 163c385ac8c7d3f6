package sim

import (
	"cmp"
	"slices"
)

// roundRobin lets servers take turns, in an order that spreads each one's turns evenly.
type roundRobin struct {
	blind
	order []int32
	next  []int // by director; one for all of them if there is one
}

// newCentral makes all directors share their turns.
func newCentral(r *cluster) policy {
	return &roundRobin{order: turns(r.config), next: []int{0}}
}

// newDistributed makes each director begin anywhere, and go on by itself.
func newDistributed(r *cluster) policy {
	p := &roundRobin{order: turns(r.config), next: make([]int, r.config.Directors)}
	for d := range p.next {
		p.next[d] = r.choices.IntN(len(p.order))
	}
	return p
}

func (p *roundRobin) place(director int) int32 {
	next := &p.next[director%len(p.next)]
	server := p.order[*next]
	if *next++; *next == len(p.order) {
		*next = 0
	}
	return server
}

// turns returns whose turn it is, in order, until it begins again: a server has as many
// as its weight, the middle of each at equal distances.
func turns(c *Config) []int32 {
	type turn struct {
		at     float64
		server int32
	}
	var all []turn
	for server, weight := range c.weights() {
		for n := range int(weight) {
			all = append(all, turn{(float64(n) + 0.5) / weight, int32(server)})
		}
	}
	slices.SortStableFunc(all, func(a, b turn) int { return cmp.Compare(a.at, b.at) })
	order := make([]int32, len(all))
	for i, t := range all {
		order[i] = t.server
	}
	return order
}
