package engine

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	"weir.io/weir/lab/twin"
)

// group is a group of directors in gue and the hosts behind them: the life of a service,
// whose directors apply its changes one after the other, and each lose some backends from
// sight. Hosts have sockets, and agents that report them.
type group struct {
	*lifeOfAService
	evidence    Evidence
	reports     map[model.HostAddress]model.AgentReport
	revisions   []revision
	rings       map[digest]maglev.Generation
	directors   []*director
	hosts       map[netip.Addr]*twin.Host
	cookies     map[netip.Addr]bool // hosts that answer every SYN with one
	clients     []*client
	port        uint16
	walked      int // packets that had to come to one host
	passed      int // of these, that another host passed on
	behind      int // packets through a director that did not know the connection's generation yet
	misdirected int // of these, that came to another host
	crowded     int // packets of an older owner that came to another host, because a row of a service with tiers had no room
	switched    int // plans of directors that use another tier than the first
}

// revision is what the service was after a change.
type revision struct {
	service model.Service
	log     model.Log
}

func (r *revision) has(backend netip.AddrPort) bool {
	return slices.ContainsFunc(r.service.Backends, func(b model.Backend) bool { return b.Endpoint() == backend })
}

// director is one of the group.
type director struct {
	revision int
	unseen   map[netip.AddrPort]bool
	planner  *Planner
	service  model.TableService
}

// client is a client's end of a connection.
type client struct {
	flow     model.Flow
	answers  []answer // to its SYNs, until it has acknowledged one
	end      netip.Addr
	backend  netip.AddrPort
	revision int // of the director that placed it
	tier     uint8
	promised bool // its packets must come to its host
	backup   bool // it was placed on a backup
	ended    bool
	syn      uint32
	next     uint32 // the client's number
	ack      uint32 // the host's
	dies     time.Time
}

// answer is a SYN-ACK, the host that it is from, and the director that sent the SYN there.
type answer struct {
	number           uint32
	backend          netip.AddrPort
	revision         int
	tier             uint8
	promised, backup bool
}

func newGroup(t *testing.T, r *rand.Rand) *group {
	g := &group{lifeOfAService: newLife(t, r), reports: map[model.HostAddress]model.AgentReport{}, hosts: map[netip.Addr]*twin.Host{},
		cookies: map[netip.Addr]bool{}, rings: map[digest]maglev.Generation{}, port: 1024}
	g.service.Mode = model.GUE
	g.service.Affinity = model.Affinity(r.IntN(2))
	g.pace = livedDrain / time.Duration(6+r.IntN(6))
	for range 2 + r.IntN(3) {
		g.directors = append(g.directors, &director{planner: NewPlanner(), unseen: map[netip.AddrPort]bool{}})
	}
	return g
}

func (g *group) host(a netip.Addr) *twin.Host {
	if g.hosts[a] == nil {
		g.hosts[a] = &twin.Host{Addresses: map[netip.Addr]bool{a: true}, Sockets: map[twin.Connection]twin.Socket{},
			Cookies: map[twin.Connection]twin.Cookie{}}
		g.cookies[a] = g.r.IntN(3) == 0
	}
	return g.hosts[a]
}

// report lets an agent say which connections its host has.
func (g *group) report(of model.Backend) {
	report := model.AgentReport{Backend: of.Address, Taken: g.now}
	for _, affinity := range model.UsualAffinities {
		used := model.ReportedService{ServiceID: g.service.ID(), Affinity: affinity, Used: model.NewSlotSet(1 << (6 + g.r.IntN(6)))}
		for connection := range g.host(of.Address).Sockets {
			used.Note(g.flowOf(connection).Hash(g.service.ID().Salt(), affinity))
		}
		report.Services = append(report.Services, used)
	}
	g.reports[report.At()] = report
}

func (g *group) flowOf(c twin.Connection) model.Flow {
	return model.Flow{Source: c.Client.Addr(), Destination: c.VIP.Addr(), SourcePort: c.Client.Port(), DestinationPort: c.VIP.Port(), Protocol: uint8(model.TCP)}
}

func connection(f model.Flow) twin.Connection {
	return twin.Connection{Client: netip.AddrPortFrom(f.Source, f.SourcePort), VIP: netip.AddrPortFrom(f.Destination, f.DestinationPort)}
}

// revise makes the service's next revision, and takes out of its log what agents report
// no connections of.
func (g *group) revise() {
	for range g.r.IntN(3) {
		g.change()
	}
	held := history.Held{}
	for _, number := range g.held {
		held[number] = true
	}
	g.evidence.Renew(g.reports, true, g.now)
	log, left := history.Trim(g.log, &g.service, held, &g.evidence, g.now)
	for _, d := range left {
		if d.Cause == history.Overdue {
			g.t.Fatalf("generation %d left at max-retention", d.Number)
		}
	}
	g.log = asOf(history.Announce(history.Advance(log, &g.service, g.now), log, g.notice), g.now)
	_, report := g.planner.Plan(config(g.service), g.logs(), nil)
	g.held = report.Services[0].HeldAt
	g.holding += report.Services[0].Held
	g.longest = max(g.longest, len(g.log.Generations))
	service := g.service
	service.Backends = slices.Clone(service.Backends)
	g.revisions = append(g.revisions, revision{service, g.log})
	for _, c := range g.clients {
		if c.promised && !g.revisions[len(g.revisions)-1].has(c.backend) {
			c.promised = false // the backend is removed, and its connections with it
			delete(g.host(c.end).Sockets, connection(c.flow))
		}
	}
}

// apply lets directors come to later revisions, none more than two behind, and lose and
// find backends.
func (g *group) apply() {
	newest := len(g.revisions) - 1
	for _, d := range g.directors {
		d.revision = max(newest-g.r.IntN(3), d.revision)
		now := &g.revisions[d.revision]
		if g.r.IntN(3) == 0 {
			b := now.service.Backends[g.r.IntN(len(now.service.Backends))]
			d.unseen[b.Endpoint()] = !d.unseen[b.Endpoint()]
		}
		if g.r.IntN(5) == 0 {
			clear(d.unseen)
		}
		if g.tiers != nil && g.tiers.IntN(5) == 0 { // a tier is lost
			for i := range now.service.Backends {
				if b := &now.service.Backends[i]; b.Tier == 0 {
					d.unseen[b.Endpoint()] = true
				}
			}
		}
		health := Health{}
		for endpoint, unseen := range d.unseen {
			if unseen {
				health[model.Target{Service: now.service.ID(), Backend: endpoint}] = model.HealthDown
			}
		}
		checked := now.service
		checked.Health = &model.HealthCheck{Kind: model.CheckTCP}
		table, _ := d.planner.Plan(config(checked), Logs{now.service.ID(): asOf(now.log, g.now)}, health)
		d.service = table.Services[0]
		if d.service.Tier > 0 {
			g.switched++
		}
	}
}

func (g *group) anyDirector() *director { return g.directors[g.r.IntN(len(g.directors))] }

// start sends the SYN of a connection, and perhaps again, when its answer was lost. Its
// ports may be those of one that has ended, but of none that is open.
func (g *group) start(c *client) {
	if host := g.hosts[c.end]; host != nil && !c.ended {
		delete(host.Sockets, connection(c.flow))
	}
	c.answers, c.end, c.promised, c.ended, c.syn = nil, netip.Addr{}, false, false, c.next+1<<24+uint32(g.r.IntN(1000))
	c.next = c.syn + 1
	for again := true; again; again = g.r.IntN(4) == 0 {
		g.syn(c)
	}
}

// syn sends a SYN by some director, which any host answers.
func (g *group) syn(c *client) {
	d := g.anyDirector()
	to, _ := twin.Forward(&d.service, c.flow)
	if to < 0 {
		return
	}
	b := g.revisions[d.revision].service.Backends[to]
	host, id := g.host(b.Address), connection(c.flow)
	socket, has := host.Sockets[id]
	_, given := host.Cookies[id]
	if given || has && socket.State != twin.Ended && socket.SYN == c.syn {
		return // it was answered before
	}
	a := answer{number: g.r.Uint32(), backend: b.Endpoint(), revision: d.revision, tier: d.service.Tier}
	a.promised, a.backup = g.promises(d, b.Endpoint(), c.flow)
	if g.cookies[b.Address] {
		delete(host.Sockets, id)
		host.Cookies[id] = twin.Cookie{Sequence: c.syn + 1, Ack: a.number + 1}
	} else {
		host.Sockets[id] = twin.Socket{State: twin.Asked, SYN: c.syn, Answer: a.number}
	}
	if len(c.answers) == 0 || g.r.IntN(2) == 0 { // which of them comes first is the network's choice
		c.answers = []answer{a}
	}
}

// establish acknowledges the answer that has come.
func (g *group) establish(c *client) {
	a := c.answers[0]
	c.answers, c.ack, c.backend, c.end, c.revision = nil, a.number+1, a.backend, a.backend.Addr(), a.revision
	c.backup, c.promised, c.tier = a.backup, a.promised, a.tier
	for _, r := range g.revisions[a.revision:] {
		c.promised = c.promised && r.has(a.backend)
	}
	if g.send(c, twin.Packet{Segment: g.segment(c, packet.ACK)}) != c.end {
		c.promised, c.ended = false, true // it broke before it was there
		return
	}
	delete(g.host(c.end).Cookies, connection(c.flow))
	g.host(c.end).Sockets[connection(c.flow)] = twin.Socket{State: twin.Open, SYN: c.syn}
}

// walk takes a packet from a director to the host where it ends.
func (g *group) walk(d *director, f model.Flow, p twin.Packet) (end netip.Addr, path []netip.Addr) {
	to, row := twin.Forward(&d.service, f)
	if to < 0 {
		return netip.Addr{}, nil
	}
	at := d.service.Backends[to].Address
	for {
		if slices.Contains(path, at) {
			g.t.Fatalf("%v gets a packet again that came over %v", at, path)
		}
		path = append(path, at)
		var verdict twin.Verdict
		if verdict, row = g.host(at).Judge(p, row); verdict != twin.PassesOn {
			return at, path
		}
		at = row.Hops[row.Next-1]
	}
}

// goOn lets all clients do something.
func (g *group) goOn() {
	for _, c := range g.clients {
		switch {
		case len(c.answers) > 0:
			g.establish(c)
		case !c.end.IsValid() || !c.promised || c.ended && g.r.IntN(8) == 0:
			g.start(c)
		case c.ended:
			g.send(c, twin.Packet{Segment: g.segment(c, packet.ACK)})
		case g.r.IntN(12) == 0:
			g.close(c)
		default:
			g.talk(c)
		}
	}
}

// talk sends what an open connection may send, and a SYN of it that comes late.
func (g *group) talk(c *client) {
	if g.r.IntN(16) == 0 {
		answers := c.answers
		g.syn(c)
		c.answers = answers // to which the client says no
	}
	flags := []uint8{packet.ACK, packet.ACK | packet.PSH, packet.RST | packet.ACK, packet.RST}[g.r.IntN(4)]
	if c.next == c.syn+1 {
		flags |= packet.ACK // a bare RST would also be valid for all other hosts that have got the SYN
	}
	p := twin.Packet{Segment: g.segment(c, flags)}
	if g.r.IntN(4) == 0 {
		p = twin.Packet{Quote: &twin.Quote{Connection: connection(c.flow), Sequence: c.ack}}
	}
	g.send(c, p)
	c.next += uint32(g.r.IntN(100000))
}

func (g *group) close(c *client) {
	c.ended, c.dies = true, g.now.Add(livedDrain)
	g.host(c.end).Sockets[connection(c.flow)] = twin.Socket{State: twin.Ended, Next: c.next, Window: 65535}
}

// forget is what kernels do with what is over.
func (g *group) forget() {
	for _, c := range g.clients {
		id := connection(c.flow)
		if c.ended && g.now.After(c.dies) && c.promised {
			delete(g.host(c.end).Sockets, id)
			c.promised = false
		}
		// The client may still acknowledge an answer, or send what it has sent last again.
		if len(c.answers) > 0 || c.ended && c.promised || g.r.IntN(4) > 0 {
			continue
		}
		for _, host := range g.hosts {
			delete(host.Cookies, id)
			if socket, has := host.Sockets[id]; has && socket.State != twin.Open {
				delete(host.Sockets, id)
			}
		}
	}
}

func (g *group) run(steps int) {
	for len(g.clients) < 60 {
		g.port++
		g.clients = append(g.clients, &client{flow: model.Flow{Source: netip.AddrFrom4([4]byte{198, 51, 100, byte(g.r.IntN(200))}),
			Destination: g.service.VIP, SourcePort: g.port, DestinationPort: 80, Protocol: uint8(model.TCP)}})
	}
	for range steps {
		g.revise()
		g.apply()
		g.goOn()
		g.now = g.now.Add(time.Duration(g.r.Int64N(int64(g.pace))))
		g.forget()
		for _, b := range g.service.Backends {
			if _, has := g.reports[b.AddressIn(&g.service)]; !has || g.r.IntN(3) == 0 {
				g.report(b)
			}
		}
	}
}

// TestGroupKeepsConnections: whatever happens to a service, and whichever director sees
// what of it, a packet of a connection comes to the host that has it, until its backend
// is removed, as long as the director that the packet comes by knows as much as the one
// that has placed the connection.
func TestGroupKeepsConnections(t *testing.T) {
	var all group
	rehashed := 0
	for seed := range uint64(30) {
		g := newGroup(t, rand.New(rand.NewPCG(31, seed)))
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			g.t = t
			g.run(80)
		})
		rehashed += g.rehashed
		all.walked, all.passed, all.behind, all.misdirected = all.walked+g.walked, all.passed+g.passed, all.behind+g.behind, all.misdirected+g.misdirected
	}
	t.Logf("%d packets came to their host, %d of them over others, %d while there were two affinities; of %d by directors that were behind, %d went astray",
		all.walked, all.passed, rehashed, all.behind, all.misdirected)
	if all.passed < all.walked/100 || all.walked < 10000 || rehashed < 100 {
		t.Errorf("of %d packets %d were passed on, and %d came while there were two affinities: the histories show too little",
			all.walked, all.passed, rehashed)
	}
}

// TestGroupKeepsTiers does the same with backends in several tiers, of which each director uses the one that it sees fit. What a
// tier places connections on is named by all, and so are its older owners, unless a change of size or of affinity leaves no room.
func TestGroupKeepsTiers(t *testing.T) {
	var all group
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(32, seed))
		g := newGroup(t, r)
		g.tiers, g.lastTier = r, 1+int(seed%2)
		for i := range g.service.Backends {
			g.service.Backends[i].Tier = uint8(i % (1 + g.lastTier))
		}
		if seed%3 == 0 {
			g.service.MinHealthy = new(uint32)
			*g.service.MinHealthy = 2
		}
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			g.t = t
			g.run(80)
		})
		all.walked, all.passed, all.crowded, all.switched = all.walked+g.walked, all.passed+g.passed, all.crowded+g.crowded, all.switched+g.switched
	}
	t.Logf("%d packets came to their host, %d of them over others; %d did not, by full rows; %d plans used another tier than the first", all.walked, all.passed, all.crowded, all.switched)
	if all.walked < 10000 || all.passed < all.walked/50 || all.switched < 500 || all.crowded > all.walked/1000 {
		t.Errorf("of %d packets %d were passed on, %d found a full row, and %d plans used another tier: the histories show too little", all.walked, all.passed, all.crowded, all.switched)
	}
}

// FuzzGroupKeepsConnections does the same with other histories.
func FuzzGroupKeepsConnections(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) { newGroup(t, rand.New(rand.NewPCG(a, b))).run(60) })
}
