package sim

import (
	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/turns"
)

// roundRobin lets servers take turns, in an order that spreads each one's turns evenly.
type roundRobin struct {
	blind
	order []int32
	next  []int // by director; one for all of them if there is one
}

// newCentral makes all directors share their turns.
func newCentral(r *cluster) policy {
	return &roundRobin{order: turnsOf(r.config), next: []int{0}}
}

// newDistributed makes each director begin at a random place, and go on by itself.
func newDistributed(r *cluster) policy {
	p := &roundRobin{order: turnsOf(r.config), next: make([]int, r.config.Directors)}
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

// turnsOf returns the servers in the order of their turns, until it repeats: the order that weir's
// directors are given.
func turnsOf(c *Config) []int32 {
	weights := make([]uint16, 0, c.Servers)
	for _, weight := range c.weights() {
		weights = append(weights, uint16(weight))
	}
	positions := turns.Order(weights, int(maglev.DefaultSize(c.Servers)))
	order := make([]int32, len(positions))
	for i, server := range positions {
		order[i] = int32(server)
	}
	return order
}
