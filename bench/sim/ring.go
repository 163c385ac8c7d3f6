package sim

import (
	"math/rand/v2"
	"strconv"

	"weir.io/weir/internal/maglev"
)

// ofRing is what hashing does with independent flows: each has a random slot of the service's ring.
type ofRing struct {
	blind
	random *rand.Rand
	owners []uint32
}

func newOfRing(r *cluster) policy {
	return &ofRing{random: r.choices, owners: maglev.Ring(maglev.DefaultSize(r.config.Servers), members(r.config))}
}

func (p *ofRing) place(int) int32 { return int32(p.owners[p.random.IntN(len(p.owners))]) }

// members are the servers as a ring knows them.
func members(c *Config) []maglev.Member {
	all := make([]maglev.Member, c.Servers)
	for i := range all {
		all[i] = maglev.Member{Key: "server " + strconv.Itoa(i), Weight: 1}
		if c.Weights != nil {
			all[i].Weight = c.Weights[i]
		}
	}
	return all
}
