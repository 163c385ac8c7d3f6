package sim

import (
	"math/rand/v2"
	"slices"
	"strconv"

	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/turns"
)

// policy places requests.
type policy interface {
	// place returns the server of a request that arrives at a director.
	place(director int) int32
	// changed tells the policy that a server has one request more, or one less.
	changed(server int32, by int32)
}

// The names of the policies.
const (
	Random      = "random"
	Distributed = "round-robin per director"
	Central     = "round-robin central"
	LeastConn   = "least-conn"
	P2C         = "p2c"
	P2CInGUE    = "p2c in gue"
	Shortest    = "join shortest queue"
	OneQueue    = "one queue"
)

// policyRow is a policy and what it needs.
type policyRow struct {
	name    string
	follows bool // it uses the servers' numbers of requests
	make    func(*cluster) policy
}

// policies are all policies. It is a function because a table with functions that read the table
// would be a cycle.
func policies() []policyRow {
	return []policyRow{
		{Random, false, newOfRing},
		{Distributed, false, newDistributed},
		{Central, false, newCentral},
		{LeastConn, true, newLeastConn},
		{P2C, true, newChoices},
		{P2CInGUE, false, newInGUE},
		{Shortest, true, newShortest},
		{OneQueue, false, newOnly},
	}
}

// Policies returns the names of all policies.
func Policies() []string {
	var names []string
	for _, row := range policies() {
		names = append(names, row.name)
	}
	return names
}

func policyOf(name string) (policyRow, bool) {
	all := policies()
	i := slices.IndexFunc(all, func(row policyRow) bool { return row.name == name })
	if i < 0 {
		return policyRow{}, false
	}
	return all[i], true
}

// blind is a policy that does not look at servers.
type blind struct{}

func (blind) changed(int32, int32) {}

// only places everything in the one queue that all workers share: no policy that places requests on
// arrival does better.
type only struct{ blind }

func newOnly(*cluster) policy { return only{} }

func (only) place(int) int32 { return 0 }

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

// mostEstimates bounds the memory that directors' knowledge of their own requests takes.
const mostEstimates = 1 << 22

// estimate is what directors think that servers have: what the servers reported, and what each
// director has placed there itself since. With more directors and servers than mostEstimates
// allows, the second part is left out: then hardly two requests that come to a server between two
// reports are from the same director.
type estimate struct {
	reports *reports
	weights []float64
	own     []placed // by director and server; nil: none
}

// placed is how many requests a director has placed on a server since a report of it.
type placed struct{ report, requests uint32 }

func newEstimate(r *cluster) *estimate {
	e := &estimate{reports: r.reports, weights: r.weights}
	if n := r.config.Directors * r.config.Servers; r.config.Interval > 0 && n <= mostEstimates {
		e.own = make([]placed, n)
	}
	return e
}

// cost is how many requests per weight the server would have with one more.
func (e *estimate) cost(director int, server int32) float64 {
	has := e.reports.told[server] + 1
	if e.own != nil {
		if p := e.own[director*len(e.weights)+int(server)]; p.report == e.reports.number[server] {
			has += int32(p.requests)
		}
	}
	return float64(has) / e.weights[server]
}

// note notes that a director places a request on a server.
func (e *estimate) note(director int, server int32) {
	if e.own == nil {
		return
	}
	p := &e.own[director*len(e.weights)+int(server)]
	if now := e.reports.number[server]; p.report != now {
		*p = placed{report: now}
	}
	p.requests++
}

// The constants of bpf/director/pick/p2c.h and bpf/abi/load_types.h.
const (
	ownerParts     = 8
	backupParts    = 9
	loadConnection = 16
	loadPeriod     = float64(1<<35) / 1e9 // seconds
	loadMost       = 1 << 30
)

// inGUE is policy p2c as weir has it in mode gue: the two servers are the owner and the backup of a
// slot, and a director knows what it has placed itself, a number that is halved every period.
type inGUE struct {
	blind
	random  *rand.Rand
	weights []float64
	owners  []uint32
	backups []uint32
	period  func() uint32
	loads   []load // by director and server
}

// load is what a director has placed on a server.
type load struct {
	opened uint32 // in units
	period uint32
}

func newInGUE(r *cluster) policy {
	second := r.config.Second
	if second == 0 {
		second = 1
	}
	owners, backups := maglev.RingAndBackups(maglev.DefaultSize(r.config.Servers), members(r.config))
	return &inGUE{
		random: r.choices, weights: r.weights, owners: owners, backups: backups,
		period: func() uint32 { return uint32(r.now / (loadPeriod * second)) },
		loads:  make([]load, r.config.Directors*r.config.Servers),
	}
}

func (p *inGUE) place(director int) int32 {
	slot := p.random.IntN(len(p.owners))
	owner, backup := p.owners[slot], p.backups[slot]
	period := p.period()
	loads := p.loads[director*len(p.weights):]
	chosen := owner
	if lessLoad(loads[backup].now(period), loads[owner].now(period), p.weights[backup], p.weights[owner]) {
		chosen = backup
	}
	if l := &loads[chosen]; l.opened < loadMost {
		l.opened += loadConnection
	}
	return int32(chosen)
}

// now returns the load in this period.
func (l *load) now(period uint32) uint32 {
	if passed := period - l.period; passed > 0 {
		l.opened >>= min(passed, 31)
		l.period = period
	}
	return l.opened
}

// lessLoad reports whether the backup would have less load for its weight than the owner, even with
// one more connection: the rule of has_less_load in bpf/director/pick/p2c.h.
func lessLoad(backups, owners uint32, backupWeight, ownerWeight float64) bool {
	return float64(owners)*backupWeight*ownerParts > float64(backups+loadConnection)*ownerWeight*backupParts
}

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
