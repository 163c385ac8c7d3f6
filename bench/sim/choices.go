package sim

import "math/rand/v2"

// choices is the power of two choices: a request goes to the better of two servers taken at random,
// by weight, as far as the director knows.
type choices struct {
	blind
	*estimate
	random *rand.Rand
	order  []int32 // each server as often as its weight says
}

func newChoices(r *cluster) policy {
	return &choices{estimate: newEstimate(r), random: r.choices, order: turnsOf(r.config)}
}

func (p *choices) place(director int) int32 {
	server, other := p.any(), p.any()
	for other == server {
		other = p.any()
	}
	if p.cost(director, other) < p.cost(director, server) {
		server = other
	}
	p.note(director, server)
	return server
}

func (p *choices) any() int32 { return p.order[p.random.IntN(len(p.order))] }
