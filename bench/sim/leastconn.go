package sim

import "math/rand/v2"

// leastConn places a request where, as far as the director knows, the server would have the fewest
// requests for its weight. It looks at all servers.
type leastConn struct {
	blind
	*estimate
	random *rand.Rand
}

func newLeastConn(r *cluster) policy { return &leastConn{estimate: newEstimate(r), random: r.choices} }

func (p *leastConn) place(director int) int32 {
	var best int32
	least, equals := p.cost(director, 0), 1
	for server := int32(1); int(server) < len(p.weights); server++ {
		switch cost := p.cost(director, server); {
		case cost < least:
			best, least, equals = server, cost, 1
		case cost == least:
			if equals++; p.random.IntN(equals) == 0 {
				best = server
			}
		}
	}
	p.note(director, best)
	return best
}
