package engine

import (
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// placed is a connection: what its packets hash to, whose it is, and when a director
// last placed one like it.
type placed struct {
	hash     uint32
	backend  netip.AddrPort
	asBackup bool // in place of an owner that was down or removed
}

// lifeOfAService plays a random history of one service in random steps of time, and
// knows its connections.
type lifeOfAService struct {
	t           *testing.T
	r           *rand.Rand
	service     model.Service
	now         time.Time
	planner     *Planner
	log         model.Log
	held        []uint64 // generations, by the plan that runs
	connections map[placed]time.Time
	pace        time.Duration // the longest step
	notice      time.Duration // of a new generation; 0: none
	v6          bool
	backends    int        // ever
	holding     int        // slots, seen
	resized     int        // plans with rings of several sizes
	rehashes    *rand.Rand // decides about changes of affinity; nil: there are none
	rehashed    int        // plans with two affinities
	tiers       *rand.Rand // decides about backends' tiers; nil: there is one
	lastTier    int
	choices     int // connections that may be of two
	longest     int // log
}

const livedDrain = time.Minute

func newLife(t *testing.T, r *rand.Rand) *lifeOfAService {
	l := &lifeOfAService{
		t: t, r: r, service: web(0), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		planner: NewPlanner(), connections: map[placed]time.Time{},
	}
	l.service.Mode = []model.Mode{model.GUE, model.IPIP}[r.IntN(2)]
	l.service.Retention = model.Duration(livedDrain)
	l.service.RingSize = []uint32{53, 101, 101, 0}[r.IntN(4)]
	l.v6, l.pace = r.IntN(2) == 0, livedDrain/time.Duration(3+r.IntN(20))
	l.notice = l.pace * time.Duration(r.IntN(4)) / 2
	for range 2 + r.IntN(10) {
		l.add()
	}
	if l.backends%2 == 0 {
		l.rehashes = rand.New(rand.NewPCG(uint64(l.pace), 1))
	}
	return l
}

func (l *lifeOfAService) add() {
	b := model.Backend{Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + l.backends%40)}), Weight: 100, State: model.Active}
	if l.v6 {
		b.Address = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(1 + l.backends%40)})
	}
	l.backends++
	if !slices.ContainsFunc(l.service.Backends, func(o model.Backend) bool { return o.Address == b.Address }) {
		l.service.Backends = append(l.service.Backends, b)
	}
}

// change is what people and controllers do.
func (l *lifeOfAService) change() {
	s := &l.service
	s.Backends = slices.Clone(s.Backends)
	n := len(s.Backends)
	i := l.r.IntN(n)
	switch l.r.IntN(13) {
	case 0, 1, 2:
		l.add()
	case 3:
		if n > 2 {
			s.Backends = slices.Delete(s.Backends, i, i+1)
		}
	case 4:
		l.backends = l.r.IntN(40) // a backend that was here may come back
		l.add()
	case 5, 6:
		s.Backends[i].State = model.Draining
	case 7:
		s.Backends[i].State = model.Active
	case 8, 9:
		s.Backends[i].Weight = uint16(l.r.IntN(5) * 50)
	case 10:
		l.r.Shuffle(n, func(i, j int) { s.Backends[i], s.Backends[j] = s.Backends[j], s.Backends[i] })
	case 11:
		s.RingSize = []uint32{53, 101, 103, 211}[l.r.IntN(4)]
	case 12:
		s.Policy = []model.Policy{model.Maglev, model.P2C}[l.r.IntN(2)]
	}
	if l.rehashes != nil && l.rehashes.IntN(12) == 0 {
		s.Affinity = 1 - s.Affinity
	}
	if l.tiers != nil && l.tiers.IntN(6) == 0 {
		s.Backends[l.tiers.IntN(len(s.Backends))].Tier = uint8(l.tiers.IntN(1 + l.lastTier))
	}
	if l.tiers != nil && s.Tiers() <= l.lastTier { // one that comes would shorten rows
		s.Backends[0].Tier = uint8(l.lastTier)
	}
}

func (l *lifeOfAService) logs() Logs { return Logs{l.service.ID(): l.log} }

// advance does what the controller of desired state does to the logs between two plans.
func (l *lifeOfAService) advance() {
	held := history.Held{}
	for _, number := range l.held {
		held[number] = true
	}
	log, _ := history.Trim(l.log, &l.service, held, nil, l.now)
	l.log = asOf(history.Announce(history.Advance(log, &l.service, l.now), log, l.notice), l.now)
}

// asOf is the log as it is at a time for a director that learned of its newest generation at once.
func asOf(log model.Log, now time.Time) model.Log {
	if len(log.Generations) > 0 {
		log.Coming, _ = history.Coming(log, log.Generations[0].Since, now)
	}
	return log
}

// step plans, checks the plan, and places connections by it until the next step.
func (l *lifeOfAService) step() {
	c := config(l.service)
	l.advance()
	table, report := l.planner.Plan(c, l.logs(), nil)
	l.held = report.Services[0].HeldAt
	l.holding += report.Services[0].Held
	log := l.log
	l.longest = max(l.longest, len(log.Generations))
	if slices.ContainsFunc(log.Generations, func(g model.Generation) bool { return g.Slots != log.Generations[0].Slots }) {
		l.resized++
	}
	l.checkAlone(c, table, report)
	s := &table.Services[0]
	if s.Before != nil {
		l.rehashed++
	}
	now, before := l.bounds()
	for connection, at := range l.connections {
		l.check(s, connection, at, now, before)
	}
	l.now = l.now.Add(time.Duration(l.r.Int64N(int64(l.pace))))
	for range 30 {
		hash := l.r.Uint32()
		row := rowOf(&s.Ring, by(s.Affinity, hash))
		if len(row) == 0 {
			continue
		}
		for _, b := range l.chosen(s, hash) {
			l.connections[l.placed(log, hash, l.service.Backends[b].Endpoint())] = l.now
		}
		if len(row) > 1 && l.service.Backends[row[1]].Endpoint() == l.backup(log, l.hashed(hash)) {
			l.connections[placed{hash, l.service.Backends[row[1]].Endpoint(), true}] = l.now
		}
	}
}

// chosen returns the backends that new connections may go to while all are up.
func (l *lifeOfAService) chosen(s *model.TableService, hash uint32) []uint32 {
	hash = by(s.Affinity, hash)
	row := rowOf(&s.Ring, hash)
	if len(row) < 2 || s.Policy != model.P2C || s.Backends[row[0]].Weight == 0 || s.Backends[row[1]].Weight == 0 {
		return row[:min(len(row), 1)]
	}
	slot := s.Ring.Slots[uint64(hash)*uint64(len(s.Ring.Slots))>>32]
	if slot.Next&model.ListFlag != 0 && s.Ring.Lists[slot.Next&^model.ListFlag].Fixed {
		return row[:1]
	}
	l.choices++
	return row[:2]
}

// backup is what the ring of the newest generation with members says.
func (l *lifeOfAService) backup(log model.Log, hash func(model.Affinity) uint32) netip.AddrPort {
	for i := range log.Generations {
		g := &log.Generations[i]
		if len(g.Members) == 0 {
			continue
		}
		if len(g.Members) == 1 {
			break
		}
		backups := makeRing(g).Backups
		return g.Members[backups[uint64(hash(g.Affinity))*uint64(len(backups))>>32]].Backend
	}
	return netip.AddrPort{}
}

func (l *lifeOfAService) hashed(hash uint32) func(model.Affinity) uint32 {
	return func(a model.Affinity) uint32 { return by(a, hash) }
}

func (l *lifeOfAService) bound() int {
	if l.v6 {
		return model.MaxCandidates6
	}
	return model.MaxCandidates
}

// by is what a connection hashes to by an affinity.
func by(affinity model.Affinity, hash uint32) uint32 {
	if affinity == model.AffinitySourceIP {
		return bits.RotateLeft32(hash*0x9e3779b1, 16)
	}
	return hash
}

// candidatesOf is whose a connection may be: the rows of both rings. full says that one of
// them has no room for anybody else.
func candidatesOf(s *model.TableService, hash uint32, now, before int) (all []uint32, full bool) {
	all = rowOf(&s.Ring, by(s.Affinity, hash))
	full = len(all) == now
	if s.Before == nil {
		return all, full
	}
	older := rowOf(&s.Before.Ring, by(s.Before.Affinity, hash))
	full = full || len(older) == before
	for _, b := range older {
		if !slices.Contains(all, b) {
			all = append(all, b)
		}
	}
	return all, full
}

// bounds are those on the rows of the ring and of the one before. They take longer to find
// than a connection's row.
func (l *lifeOfAService) bounds() (now, before int) { return l.boundsOf(&l.service, l.log) }

func (l *lifeOfAService) boundsOf(s *model.Service, log model.Log) (now, before int) {
	m := membershipsOf(s, log)[0]
	if m.before != nil {
		before = m.before.bound
	}
	if m.now.bound+before != l.bound() {
		l.t.Fatalf("rows of %d and %d candidates are not those of one packet, %d", m.now.bound, before, l.bound())
	}
	return m.now.bound, before
}

// placed is a connection that goes to a backend. In a slot that is held and whose owner was
// removed no generation says that it is this one's, and connections go there in place of
// the owner.
func (l *lifeOfAService) placed(log model.Log, hash uint32, backend netip.AddrPort) placed {
	named := slices.ContainsFunc(log.Generations, func(g model.Generation) bool {
		ring := l.planner.rings.of(&located{Generation: g, ring: ringDigest(&g)})
		is := func(members []uint32) bool {
			return len(members) > 0 && g.Members[members[uint64(by(g.Affinity, hash))*uint64(len(members))>>32]].Backend == backend
		}
		return is(ring.Owners) || len(g.Members) > 1 && placesOnBackups(&g) && is(ring.Backups)
	})
	return placed{hash, backend, !named}
}

// rowOf is a hash's row.
func rowOf(ring *model.Ring, hash uint32) []uint32 {
	if len(ring.Slots) == 0 {
		return nil
	}
	slot := ring.Slots[uint64(hash)*uint64(len(ring.Slots))>>32]
	switch {
	case slot.Owner == model.NoBackend:
		return nil
	case slot.Next == model.NoBackend:
		return []uint32{slot.Owner}
	case slot.Next&model.ListFlag == 0:
		return []uint32{slot.Owner, slot.Next}
	}
	return append([]uint32{slot.Owner}, ring.Lists[slot.Next&^model.ListFlag].Next...)
}

// check looks for a connection's backend in its row. It is not looked for when it is older than
// drain, or when its backend was removed. One that was placed on a backup may find no room.
func (l *lifeOfAService) check(s *model.TableService, connection placed, at time.Time, now, before int) {
	is := func(b model.Backend) bool { return b.Endpoint() == connection.backend }
	if l.now.Sub(at) >= livedDrain || !slices.ContainsFunc(l.service.Backends, is) {
		delete(l.connections, connection)
		return
	}
	row, full := candidatesOf(s, connection.hash, now, before)
	found := slices.ContainsFunc(row, func(b uint32) bool { return is(l.service.Backends[b]) })
	if !found && !(connection.asBackup && full) {
		l.t.Fatalf("a connection that was placed %v ago (as backup: %v) has lost its backend %v: the row is %v, the log\n%v",
			l.now.Sub(at), connection.asBackup, connection.backend, row, l.log)
	}
}

// checkAlone compares the plan with that of a director that knows only the log, and
// checks the rows.
func (l *lifeOfAService) checkAlone(c model.Config, table model.Table, report Report) {
	again, reportAgain := Plan(c, l.logs(), nil)
	if !reflect.DeepEqual(table, again) || !reflect.DeepEqual(report, reportAgain) {
		l.t.Fatal("a director that has only the log plans otherwise")
	}
	if want := report.Services[0].HeldAt; len(want) > 0 {
		got := HeldAt([]model.Service{l.service}, l.logs())[l.service.ID()]
		if len(got) != len(want) || slices.ContainsFunc(want, func(number uint64) bool { return !got[number] }) {
			l.t.Fatalf("slots are held at %v by the log and at %v by the plan", got, want)
		}
	}
	s := &table.Services[0]
	now, before := l.bounds()
	l.checkRows(&s.Ring, now)
	if s.Before != nil {
		l.checkRows(&s.Before.Ring, before)
	}
}

// checkRows looks at the rows by themselves.
func (l *lifeOfAService) checkRows(ring *model.Ring, bound int) {
	for i := range ring.Slots {
		row := rowOf(ring, uint32((uint64(i)<<32+uint64(len(ring.Slots))-1)/uint64(len(ring.Slots))))
		if len(row) > bound {
			l.t.Fatalf("a row has %d candidates", len(row))
		}
		for j, b := range row {
			if int(b) >= len(l.service.Backends) || slices.Contains(row[:j], b) {
				l.t.Fatalf("the row %v has somebody twice, or who is no backend", row)
			}
		}
	}
}

func (l *lifeOfAService) run(steps int) {
	for range steps {
		for range l.r.IntN(3) {
			l.change()
		}
		l.step()
	}
}

func TestNoConnectionLosesItsBackend(t *testing.T) {
	held, resized, rehashed, longest, choices := 0, 0, 0, 0, 0
	for seed := range uint64(40) {
		l := newLife(t, rand.New(rand.NewPCG(4, seed)))
		l.run(50)
		held, resized, rehashed, longest = held+l.holding, resized+l.resized, rehashed+l.rehashed, max(longest, l.longest)
		choices += l.choices
		if t.Failed() {
			t.Fatal("seed", seed)
		}
	}
	if held == 0 || resized == 0 || rehashed == 0 || longest < 5 || choices == 0 {
		t.Errorf("the histories had %d slots held, %d plans with rings of several sizes, %d with two affinities, at most %d generations and %d connections of two",
			held, resized, rehashed, longest, choices)
	}
}

func FuzzNoConnectionLosesItsBackend(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) { newLife(t, rand.New(rand.NewPCG(a, b))).run(40) })
}

// Directors that saw different parts of a history plan the same by the same log: only
// the log counts, not the way to it.
func TestRowsDependOnTheLogAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	l := newLife(t, r)
	late := NewPlanner() // sees one plan in five
	for step := range 60 {
		l.run(1)
		if step%5 != 0 {
			continue
		}
		c := config(l.service)
		l.advance()
		want, _ := l.planner.Plan(c, l.logs(), nil)
		if got, _ := late.Plan(c, l.logs(), nil); !reflect.DeepEqual(got, want) {
			t.Fatal("a director that saw fewer plans has other rows")
		}
	}
}

// A log that is trimmed costs only the rows of its service.
func TestTrimmedLogKeepsRings(t *testing.T) {
	s, other := web(8), web(8)
	other.Name, other.VIP = "other", netip.MustParseAddr("192.0.2.9")
	other.Backends = other.Backends[:5]
	p, now := NewPlanner(), time.Unix(0, 0)
	log := history.Advance(model.Log{}, &s, now)
	s.Backends[0].State = model.Draining
	log = history.Advance(log, &s, now)
	before, _ := p.Plan(config(s, other), Logs{s.ID(): log}, nil)
	trimmed, _ := history.Trim(log, &s, nil, nil, now.Add(time.Hour))
	rings := len(p.rings.rings)
	after, _ := p.Plan(config(s, other), Logs{s.ID(): trimmed}, nil)
	if len(p.rings.rings) != rings-1 {
		t.Errorf("%d rings are remembered of %d", len(p.rings.rings), rings)
	}
	if &before.Services[1].Ring.Slots[0] != &after.Services[1].Ring.Slots[0] {
		t.Error("another service's rows were made again")
	}
	if len(before.Services[0].Ring.Lists) == 0 || len(after.Services[0].Ring.Lists) != 0 {
		t.Error("the trimmed log changed no row")
	}
}
