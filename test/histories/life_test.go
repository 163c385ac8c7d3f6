package histories

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/maglev"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/twin"
	"weir.io/weir/quiclb"
)

const drain = time.Minute

// life is the random life of a service, of a group of directors that learn of its changes at
// different moments, and of its connections. Its clock is not the kernels' clock: it ends long
// before they forget anything.
type life struct {
	rehashes int // changes of affinity
	*lab
	testing.TB
	r           *rand.Rand
	six         bool // tunnels are over IPv6
	service     model.Service
	log         model.Log
	held        []uint64 // generations, by the current plan
	now         time.Time
	pace        time.Duration // the longest step
	calm        int           // how many times fewer changes
	notice      time.Duration // of a new generation
	planner     *engine.Planner
	evidence    engine.Evidence
	reports     map[model.HostAddress]model.AgentReport
	revisions   []revision
	rings       map[tierRing]maglev.Generation
	tiered      bool          // backends are in tiers
	clients     []*client     // of TCP
	speakers    []*speaker    // of UDP
	codec       *quiclb.Codec // of QUIC; nil: no QUIC
	happened    int
	expired     time.Time // when kernels begin to forget
	conclusions *tally
}

// revision is what the service was after a change.
type revision struct {
	service model.Service
	log     model.Log
}

func (r *revision) has(backend netip.AddrPort) bool {
	return slices.ContainsFunc(r.service.Backends, func(b model.Backend) bool { return b.Endpoint() == backend })
}

// tally counts what histories have shown.
type tally struct {
	walked      int // packets of connections that had to reach one host
	passed      int // of these, those that another host passed on
	behind      int // packets by directors that did not know the connection's generation yet
	misdirected int // of these, those that came to another host
	crowded     int // packets of a backup's connection for which no row had room
	opened      int
	cookies     int // connections opened by a cookie
	resent      int // SYNs that came to a second host
	rehashed    int // packets of services with two affinities
	chosen      int // connections of p2c that the backup got
	lost        int // connections whose backend was removed
	restarted   int // directors
	relayed     int // QUIC datagrams to a backend that is down for a director
	held        int // slots, by plans
	lastResort  int // packets of no known connection
	switched    int // plans of directors that use another tier than the first
	crowdedOut  int // packets of an older owner in another tier for which no row had room
}

// kind is the protocol of the clients.
type kind string

const (
	tcp   kind = "TCP"
	udp   kind = "UDP"
	quic  kind = "QUIC"
	tiers kind = "TCP in tiers"
)

// untilForgotten is how long kernels surely keep everything of a history: they keep a handshake for
// 63 s, TIME_WAIT for 60 s, and accept a cookie for a minute.
const untilForgotten = 45 * time.Second

func newLife(t testing.TB, l *lab, of kind, r *rand.Rand, conclusions *tally) *life {
	protocol := model.UDP
	if of == tcp || of == tiers {
		protocol = model.TCP
	}
	vip := []netip.Addr{vip4, vip6}[r.IntN(2)]
	h := &life{lab: l, TB: t, r: r, service: service(vip, protocol), six: r.IntN(2) == 0, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		planner: engine.NewPlanner(), reports: map[model.HostAddress]model.AgentReport{}, rings: map[tierRing]maglev.Generation{}, tiered: of == tiers,
		expired: time.Now().Add(untilForgotten), conclusions: conclusions}
	h.service.Retention = model.Duration(drain)
	h.service.RingSize = []uint32{53, 101, 211}[r.IntN(3)]
	h.service.Affinity = model.Affinity(r.IntN(2))
	h.service.Policy = []model.Policy{model.Maglev, model.P2C}[r.IntN(2)]
	h.calm = []int{1, 1, 8}[r.IntN(3)] // a change of affinity waits until all others are over
	if h.calm > 1 || protocol == model.UDP {
		h.service.Policy = model.Maglev
	}
	if of == quic {
		h.speakQUIC()
	}
	h.pace = drain / time.Duration(6+r.IntN(6))
	h.notice = h.pace * time.Duration(r.IntN(4)) / 2
	for range 3 + r.IntN(3) {
		h.add()
	}
	cookies := r.IntN(2 * hostsIn)
	for number, host := range l.hosts {
		host.start(t, number == cookies)
	}
	for _, d := range l.directors {
		d.start(t)
	}
	return h
}

func (h *life) add() {
	a := backendAddress(h.r.IntN(backendsIn), h.six)
	if !slices.ContainsFunc(h.service.Backends, func(b model.Backend) bool { return b.Address == a }) {
		b := model.Backend{Name: a.String(), Address: a, Weight: 100, State: model.Active}
		if h.codec != nil {
			b.ServerID = model.SameServerID(model.ServerID(serverID(a)))
		}
		if h.tiered {
			b.Tier = uint8(len(h.service.Backends) % 2)
		}
		h.service.Backends = append(h.service.Backends, b)
	}
}

// change makes a random change, like people and controllers.
func (h *life) change() {
	s := &h.service
	s.Backends = slices.Clone(s.Backends)
	n := len(s.Backends)
	i := h.r.IntN(n)
	switch h.r.IntN(14) {
	case 0, 1, 2:
		h.add()
	case 3:
		if n > 2 {
			s.Backends = slices.Delete(s.Backends, i, i+1)
		}
	case 4, 5:
		s.Backends[i].State = model.Draining
	case 6:
		s.Backends[i].State = model.Active
	case 7, 8:
		s.Backends[i].Weight = uint16(h.r.IntN(5) * 50)
	case 9:
		h.r.Shuffle(n, func(i, j int) { s.Backends[i], s.Backends[j] = s.Backends[j], s.Backends[i] })
	case 10:
		s.RingSize = []uint32{53, 101, 103, 211}[h.r.IntN(4)]
	case 11, 12:
		h.rehash()
	case 13:
		if s.Protocol == model.UDP {
			return // p2c is for connections
		}
		s.Policy = []model.Policy{model.Maglev, model.P2C}[h.r.IntN(2)]
	}
	if !h.tiered {
		return
	}
	if h.r.IntN(5) == 0 {
		s.Backends[h.r.IntN(len(s.Backends))].Tier = uint8(h.r.IntN(2))
	}
	if !s.Tiered() { // a tier that comes would shorten rows
		s.Backends[0].Tier = 1
	}
}

// revise makes the service's next revision.
func (h *life) revise() {
	for range h.r.IntN(3) {
		if h.r.IntN(h.calm) == 0 {
			h.change()
		}
	}
	h.advance()
	for _, s := range h.speakers {
		if s.host != nil && !h.revisions[len(h.revisions)-1].has(s.backend) {
			h.conclusions.lost++
			s.forget()
		}
	}
	for _, c := range h.clients {
		if c.stage != closed && !h.revisions[len(h.revisions)-1].has(c.backend) {
			h.conclusions.lost++ // docs/internals/consistency.md, "Rows": a backend takes its connections along
			c.forget()
		}
	}
}

// advance does what the controller of desired state does to the service's log: it also removes
// generations without reported connections.
func (h *life) advance() {
	held := history.Held{}
	for _, number := range h.held {
		held[number] = true
	}
	h.evidence.Renew(h.reports, true, h.now)
	log, _ := history.Trim(h.log, &h.service, held, &h.evidence, h.now)
	h.log = asOf(history.Announce(history.Advance(log, &h.service, h.now), log, h.notice), h.now)
	_, report := h.planner.Plan(model.Config{Services: []model.Service{h.service}}, h.logs(h.log), nil)
	h.held = report.Services[0].HeldAt
	h.conclusions.held += report.Services[0].Held
	h.revisions = append(h.revisions, revision{h.service, h.log})
}

func (h *life) logs(log model.Log) engine.Logs { return engine.Logs{h.service.ID(): log} }

// asOf is the log at a time for a director that learned of its newest generation at once.
func asOf(log model.Log, now time.Time) model.Log {
	if len(log.Generations) > 0 {
		log.Coming, _ = history.Coming(log, log.Generations[0].Since, now)
	}
	return log
}

// apply moves directors to later revisions, at most two behind, and lets them lose and find
// backends, and restart.
func (h *life) apply() {
	newest := len(h.revisions) - 1
	for _, d := range h.directors {
		switch h.r.IntN(120) {
		case 0:
			h.conclusions.restarted++
			d.restart(h, true)
		case 1, 2, 3:
			h.conclusions.restarted++
			d.restart(h, false)
		}
		d.revision = max(newest-h.r.IntN(3), d.revision)
		now := &h.revisions[d.revision]
		if h.r.IntN(3) == 0 {
			b := now.service.Backends[h.r.IntN(len(now.service.Backends))]
			d.unseen[b.Endpoint()] = !d.unseen[b.Endpoint()]
		}
		if h.r.IntN(5) == 0 {
			clear(d.unseen)
		}
		if h.tiered && h.r.IntN(5) == 0 { // the first tier is lost
			for i := range now.service.Backends {
				if b := &now.service.Backends[i]; b.Tier == 0 {
					d.unseen[b.Endpoint()] = true
				}
			}
		}
		if h.update(d); d.service.Tier > 0 {
			h.conclusions.switched++
		}
	}
}

// update gives a director the table of its revision, with the health that it sees.
func (h *life) update(d *director) {
	now, health := &h.revisions[d.revision], engine.Health{}
	for endpoint, unseen := range d.unseen {
		if unseen {
			health[model.Target{Service: now.service.ID(), Backend: endpoint}] = model.HealthDown
		}
	}
	checked := now.service
	checked.Health = &model.HealthCheck{Kind: model.CheckTCP}
	table, _ := d.planner.Plan(model.Config{Services: []model.Service{checked}}, h.logs(asOf(now.log, h.now)), health)
	d.apply(h, table)
}

// newFlow is a flow that probably no earlier connection had: kernels remember some for a while.
func (h *life) newFlow() model.Flow {
	source := netip.AddrFrom4([4]byte{198, 18 + byte(h.r.IntN(2)), byte(h.r.IntN(256)), byte(h.r.IntN(256))})
	if h.service.VIP.Is6() {
		address := clients6.Addr().As16()
		binary.BigEndian.PutUint32(address[12:], h.r.Uint32())
		source = netip.AddrFrom16(address)
	}
	return model.Flow{Source: source, Destination: h.service.VIP, SourcePort: uint16(1024 + h.r.IntN(1<<16-1024)), DestinationPort: webPort,
		Protocol: uint8(h.service.Protocol)}
}

// network is what clients of one network have in common.
var network = model.AffinityPrefix{V4: 28, V6: 120}

// rehash gives the service another affinity: by flow, by source, by flow, by a prefix of the source.
func (h *life) rehash() {
	s := &h.service
	s.Affinity, s.AffinityPrefix = 1-s.Affinity, model.AffinityPrefix{}
	if s.Affinity == model.AffinitySourceIP && h.rehashes%2 == 0 {
		s.AffinityPrefix = network
	}
	h.rehashes++
}

// report makes an agent report the connections of its host.
func (h *life) report(of netip.Addr) {
	report := model.AgentReport{Backend: of, Taken: h.now}
	for _, affinity := range []model.Affinity{model.AffinityFlow, model.AffinitySourceIP, model.SourcePrefix(network)} {
		used := model.ReportedService{ServiceID: h.service.ID(), Affinity: affinity, Used: model.NewSlotSet(1 << (6 + h.r.IntN(6)))}
		for c := range h.at[of].twin.Sockets {
			used.Note(flowOf(c).Hash(h.service.ID().Salt(), affinity))
		}
		for f := range h.at[of].kept {
			used.Note(f.Hash(h.service.ID().Salt(), affinity))
		}
		report.Services = append(report.Services, used)
	}
	h.reports[report.At()] = report
}

func flowOf(c twin.Connection) model.Flow {
	return model.Flow{Source: c.Client.Addr(), Destination: c.VIP.Addr(), SourcePort: c.Client.Port(), DestinationPort: c.VIP.Port(), Protocol: uint8(model.TCP)}
}

// run runs a history of this many steps. It reports whether it came to its end.
func (h *life) run(steps, clients int) bool {
	h.Helper()
	defer func() {
		for _, c := range h.clients {
			c.forget()
		}
	}()
	for range clients {
		if h.service.Protocol == model.UDP {
			h.speakers = append(h.speakers, &speaker{life: h})
		} else {
			h.clients = append(h.clients, &client{life: h})
		}
	}
	for range steps {
		if time.Now().After(h.expired) {
			h.Logf("after %d steps kernels begin to forget what has happened", h.happened)
			return false
		}
		h.happened++
		h.revise()
		h.apply()
		for _, c := range h.clients {
			c.goOn()
		}
		for _, s := range h.speakers {
			s.goOn()
		}
		for _, host := range h.hosts {
			host.checkCounts(h)
		}
		h.now = h.now.Add(time.Duration(h.r.Int64N(int64(h.pace))))
		for _, b := range h.service.Backends {
			if _, has := h.reports[b.AddressIn(&h.service)]; !has || h.r.IntN(3) == 0 {
				h.report(b.Address)
			}
		}
	}
	return true
}
