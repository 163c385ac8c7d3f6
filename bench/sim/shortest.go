package sim

import "math/rand/v2"

// shortest places a request where the server would have the fewest requests for its weight right
// now: all directors know everything.
type shortest struct {
	random  *rand.Rand
	classes []*class
	of      []int32 // the class of each server
}

func newShortest(r *cluster) policy {
	p := &shortest{random: r.choices, of: make([]int32, r.config.Servers)}
	number := map[float64]int32{}
	for server, weight := range r.weights {
		i, found := number[weight]
		if !found {
			i = int32(len(p.classes))
			number[weight] = i
			p.classes = append(p.classes, &class{weight: weight, place: make([]int32, r.config.Servers), begins: []int32{0}})
		}
		p.of[server] = i
		p.classes[i].join(int32(server))
	}
	return p
}

// place asks each class for its best server. Among equals it takes the faster one.
func (p *shortest) place(int) int32 {
	var best *class
	for _, c := range p.classes {
		if best == nil || c.cost() < best.cost() || c.cost() == best.cost() && c.weight > best.weight {
			best = c
		}
	}
	return best.any(p.random)
}

func (p *shortest) changed(server, by int32) {
	if c := p.classes[p.of[server]]; by > 0 {
		c.more(server)
	} else {
		c.less(server)
	}
}

// class is servers of one weight, ordered by how many requests they have. With one more or one
// less, a server changes places with the last or the first that has as many.
type class struct {
	weight float64
	order  []int32
	place  []int32 // of each server in the order
	has    []int32 // by place
	begins []int32 // by the number of requests: the first place of those that have as many, or more
}

// join adds a server, which has no requests.
func (c *class) join(server int32) {
	c.place[server] = int32(len(c.order))
	c.order = append(c.order, server)
	c.has = append(c.has, 0)
}

// end is the place behind the last server that has that many.
func (c *class) end(has int32) int32 {
	if int(has)+1 < len(c.begins) {
		return c.begins[has+1]
	}
	return int32(len(c.order))
}

// cost is how many requests per weight the class's best server would have with a new one.
func (c *class) cost() float64 { return float64(c.has[0]+1) / c.weight }

// any returns one of the servers that have the fewest.
func (c *class) any(random *rand.Rand) int32 { return c.order[random.Int32N(c.end(c.has[0]))] }

func (c *class) swap(a, b int32) {
	c.order[a], c.order[b] = c.order[b], c.order[a]
	c.place[c.order[a]], c.place[c.order[b]] = a, b
}

func (c *class) more(server int32) {
	has := c.has[c.place[server]]
	last := c.end(has) - 1
	c.swap(c.place[server], last)
	if int(has)+1 == len(c.begins) {
		c.begins = append(c.begins, last)
	} else {
		c.begins[has+1] = last
	}
	c.has[last]++
}

func (c *class) less(server int32) {
	has := c.has[c.place[server]]
	first := c.begins[has]
	c.swap(c.place[server], first)
	c.begins[has]++
	c.has[first]--
}
