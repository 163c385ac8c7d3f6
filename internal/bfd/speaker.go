// Package bfd tells routers within milliseconds that a director's datapath, or the
// host it is on, is gone: Bidirectional Forwarding Detection in asynchronous mode
// (RFC 5880) over one hop (RFC 5881) and over several (RFC 5883).
//
// From the bottom to the top:
//
//   - [Packet] is what is on the wire. [Parse] refuses what RFC 5880 6.8.6 says must
//     be refused, and names the reason.
//   - [Machine] is one session's state machine and timers. It is told the time and what was
//     received, and says what to send: no clock, no socket.
//   - [Speaker] owns the sockets and all machines in one goroutine, and watches the datapath: a
//     session is held Down while the datapath that it stands for does not forward.
//   - [Serve] lets other processes say over a unix socket which sessions they want, and see the
//     sessions' state. [Supervisor] is the other process's side: it starts the BFD process if none
//     runs.
//
// The BFD process is not the control plane's process: it must go on while that one is replaced, and
// must not wait for it. So once it has its sessions it does not need to be told anything more,
// until their time is over.
package bfd

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/model"
)

// burst is how many packets of a socket are read before the timers are served.
const burst = 64

// Speaker speaks BFD. One goroutine, Run's, owns all of its state; the others ask it.
type Speaker struct {
	watcher  watcher
	log      *slog.Logger
	requests chan func()
	ready    chan struct{}           // one element: a packet has come
	events   chan func(*slog.Logger) // to be logged
	random   *rand.Rand
	changed  atomic.Pointer[chan struct{}] // closed when a session's state changes

	sessions  map[key]*session
	leaving   []*session // switched off; the neighbors are still being told
	byName    map[uint32]*session
	receivers map[place]*receiver
	problems  map[place]string      // of receivers that could not be opened
	tried     time.Time             // when opening them was tried
	does      map[string]Forwarding // the state of the interfaces; not to be changed
	renewed   time.Time             // when the sessions were last asked for
	expiry    time.Time             // when the next session is abandoned; zero: none
	ending    bool                  // every session has been switched off

	discards [discardReasons]uint64
	late     time.Duration
	timer    *time.Timer
	buffer   []byte
}

// NewSpeaker makes a speaker without sessions.
func NewSpeaker(datapath Datapath, log *slog.Logger) *Speaker {
	s := &Speaker{
		watcher: watcher{datapath: datapath}, log: log, timer: time.NewTimer(0),
		requests: make(chan func()), ready: make(chan struct{}, 1), events: make(chan func(*slog.Logger), 1024),
		random:   rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		sessions: map[key]*session{}, byName: map[uint32]*session{}, receivers: map[place]*receiver{}, problems: map[place]string{},
		buffer: make([]byte, 0, maxPacket),
	}
	s.renew()
	return s
}

// Run speaks until the context ends, and then until all neighbors are told that the sessions are
// switched off.
func (s *Speaker) Run(ctx context.Context) {
	var helpers sync.WaitGroup
	watching, blind := context.WithCancel(context.WithoutCancel(ctx))
	helpers.Go(func() {
		for event := range s.events {
			event(s.log)
		}
	})
	helpers.Go(func() { s.watcher.run(watching, func(does map[string]Forwarding) { s.noteForwarding(watching, does) }) })
	defer func() {
		blind()
		close(s.events)
		helpers.Wait()
		s.close()
	}()
	for {
		if ctx.Err() != nil && !s.ending {
			s.end(time.Now())
		}
		if s.ending && len(s.leaving) == 0 {
			return
		}
		s.wait(ctx)
		s.turn()
	}
}

// wait waits until there may be something to do: a packet, a request, or a time. The runtime waits
// for all three in one place, and no thread is blocked meanwhile, which would make the runtime
// check it every 20 microseconds.
func (s *Speaker) wait(ctx context.Context) {
	now := time.Now()
	s.timer.Reset(max(s.next(now).Sub(now), 0))
	end := ctx.Done()
	if s.ending {
		end = nil // the end is known
	}
	select {
	case <-s.ready:
	case f := <-s.requests:
		f()
	case <-s.timer.C:
	case <-end:
	}
}

// turn does the work that is due.
func (s *Speaker) turn() {
	// Packets first: a packet that has come in time must not count as late because this process was
	// late.
	for _, r := range s.receivers {
		s.receive(r)
	}
	now := time.Now()
	if len(s.problems) > 0 && now.Sub(s.tried) >= tryAgain {
		s.listen(now)
	}
	if !s.expiry.IsZero() && !now.Before(s.expiry) {
		s.look(now)
	}
	for _, session := range s.sessions {
		s.speak(now, session)
	}
	for _, session := range s.leaving {
		s.speak(now, session)
	}
	s.leaving = slices.DeleteFunc(s.leaving, func(l *session) bool {
		if !l.Gone(now) {
			return false
		}
		s.drop(l)
		return true
	})
}

// next is when the next turn is due at the latest.
func (s *Speaker) next(now time.Time) time.Time {
	next := now.Add(tryAgain)
	if !s.expiry.IsZero() && s.expiry.Before(next) {
		next = s.expiry
	}
	sooner := func(session *session) {
		if t := session.Next(); !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	for _, session := range s.sessions {
		sooner(session)
	}
	for _, session := range s.leaving {
		sooner(session)
	}
	return next
}

// receive takes the packets that a socket has.
func (s *Speaker) receive(r *receiver) {
	for range burst {
		a, ok := r.read()
		if !ok {
			return
		}
		s.discards[s.take(time.Now(), r.place, &a)]++
	}
	r.notify() // there may be more
}

// take finds the session of a packet, or says why there is none.
func (s *Speaker) take(now time.Time, at place, a *arrival) Discard {
	p, why := Parse(a.payload)
	if why != Accepted {
		return why
	}
	session, why := s.find(p, at, a)
	if why != Accepted {
		return why
	}
	return session.take(now, p, a)
}

// find returns the session of a packet: by the discriminator in the packet, but only from the
// neighbor itself; or by the packet's addresses, if it has no discriminator yet.
func (s *Speaker) find(p Packet, at place, a *arrival) (*session, Discard) {
	if p.Yours != 0 {
		session := s.byName[p.Yours]
		switch {
		case session == nil:
			return nil, DiscardYours
		case !session.from(a, at):
			return nil, DiscardPeer
		}
		return session, Accepted
	}
	for _, session := range s.sessions {
		if session.from(a, at) {
			return session, Accepted
		}
	}
	return nil, DiscardPeer
}

// speak sends the packets of a session that are due.
func (s *Speaker) speak(now time.Time, session *session) {
	if next := session.Next(); next.IsZero() || next.After(now) {
		s.note(now, session)
		return
	}
	session.Advance(now)
	if late := now.Sub(session.next); session.periodic() && !session.next.IsZero() && late > s.late && session.left > 0 {
		s.late = late
	}
	for packet, due := session.Due(now); due; packet, due = session.Due(now) {
		s.buffer = session.guard.sign(packet, s.buffer[:0])
		before := session.problem
		session.send(now, s.buffer, s.random)
		if session.problem != "" && session.problem != before {
			neighbor, problem := session.want.Name(), session.problem
			s.say(func(log *slog.Logger) { log.Warn("BFD packet not sent", "neighbor", neighbor, "error", problem) })
		}
	}
	s.note(now, session)
}

// Set replaces the sessions. It returns when that is done.
func (s *Speaker) Set(ctx context.Context, sessions []model.BFDSession) error {
	var names []string
	found := make([]finding, len(sessions))
	for i := range sessions {
		names = append(names, sessions[i].Interfaces...)
		found[i] = find(&sessions[i])
	}
	slices.Sort(names)
	return s.watcher.follow(slices.Compact(names), func(does map[string]Forwarding) error {
		return s.inLoop(ctx, func() { s.set(time.Now(), sessions, found, does) })
	})
}

// finding is what was found out for a session, not by the goroutine that speaks: a disk may be
// slow, and the kernel's lock of all network configuration may be held.
type finding struct {
	password *password
	err      error // why there is no password, if there has to be one
	index    int   // of the interface in its neighbor's zone
	device   int   // of its VRF's device
}

// find finds out what a session needs to know.
func find(want *model.BFDSession) (f finding) {
	if a := want.Authentication; a != nil {
		f.password, f.err = readPassword(a)
	}
	if zone := want.Neighbor.Zone(); zone != "" {
		f.index = indexOf(zone)
	}
	if want.VRF != "" {
		f.device = indexOf(want.VRF)
	}
	return f
}

// indexOf returns an interface's number, 0 if there is none.
func indexOf(name string) int {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return 0
	}
	return link.Index
}

func (s *Speaker) set(now time.Time, wanted []model.BFDSession, found []finding, does map[string]Forwarding) {
	if s.ending {
		return
	}
	s.renewed, s.does = now, does
	keep := map[key]bool{}
	for _, want := range wanted {
		keep[keyOf(want)] = true
	}
	for k, old := range s.sessions {
		if !keep[k] {
			s.retire(now, old)
		}
	}
	for i, want := range wanted {
		have := s.sessions[keyOf(want)]
		if have == nil {
			have = s.add(now, want)
		}
		have.want = want
		have.Set(now, timersOf(want.Timers))
		have.on(found[i].index, found[i].device)
		have.guard.set(want.Authentication, found[i].password, found[i].err)
		have.proved = want.Authentication != nil
	}
	s.listen(now)
	s.look(now)
}

// add begins a session. It replaces one with the same neighbor that is being switched off.
func (s *Speaker) add(now time.Time, want model.BFDSession) *session {
	s.leaving = slices.DeleteFunc(s.leaving, func(l *session) bool {
		same := keyOf(l.want) == keyOf(want)
		if same {
			s.drop(l)
		}
		return same
	})
	name := s.random.Uint32()
	for name == 0 || s.byName[name] != nil {
		name = s.random.Uint32()
	}
	session := newSession(now, want, name, s.random)
	session.Hold(now, held(want.Interfaces, s.does))
	session.told, session.why = session.State()
	session.saidHeld = session.Held()
	s.sessions[keyOf(want)], s.byName[name] = session, session
	return session
}

// retire switches a session off, and keeps telling the neighbor for a while.
func (s *Speaker) retire(now time.Time, session *session) {
	delete(s.sessions, keyOf(session.want))
	session.Disable(now)
	s.leaving = append(s.leaving, session)
}

func (s *Speaker) drop(session *session) {
	session.close()
	delete(s.byName, session.Discriminator())
}

// listen opens and closes the sockets as the sessions need them.
func (s *Speaker) listen(now time.Time) {
	needed := map[place]bool{}
	all := slices.Concat(slices.Collect(maps.Values(s.sessions)), s.leaving)
	for _, session := range all {
		session.receives = placeOf(session, all)
		needed[session.receives] = true
	}
	for p, r := range s.receivers {
		if !needed[p] {
			r.close()
			delete(s.receivers, p)
		}
	}
	maps.DeleteFunc(s.problems, func(p place, _ string) bool { return !needed[p] })
	s.tried = now
	for p := range needed {
		if s.receivers[p] != nil {
			continue
		}
		r, err := openReceiver(p, s.ready)
		if err != nil {
			s.fault(p, err)
			continue
		}
		delete(s.problems, p)
		s.receivers[p] = r
	}
}

// placeOf returns where a session's packets are received: at its own end's address, if each session
// of its kind names its own end. The kernel does not let one process have a port at one address and
// another the same port at all addresses. Each VRF has its own place.
func placeOf(session *session, all []*session) place {
	sources, devices, vrfs := true, true, false
	for _, other := range all {
		switch {
		case other.kind != session.kind:
		case other.want.VRF != "":
			vrfs = true
		default:
			sources = sources && other.want.Source.IsValid()
			devices = devices && other.want.Neighbor.Zone() != ""
		}
	}
	p := place{kind: session.kind, vrf: session.want.VRF, index: session.device, shared: vrfs}
	switch {
	case p.vrf != "":
	case sources:
		p.local = session.want.Source
	case devices:
		p.device = session.want.Neighbor.Zone()
	}
	return p
}

// fault notes, and logs once, why no packets can be received.
func (s *Speaker) fault(p place, err error) {
	if text := err.Error(); s.problems[p] != text {
		s.problems[p] = text
		s.say(func(log *slog.Logger) { log.Error("BFD cannot receive packets", "error", text) })
	}
}

// end switches every session off, except those that are held down: switched off means that nothing
// is wrong, which the neighbor must not believe of those.
func (s *Speaker) end(now time.Time) {
	s.ending = true
	for k, session := range s.sessions {
		if session.hold == NoDiagnostic {
			s.retire(now, session)
			continue
		}
		delete(s.sessions, k)
		s.speak(now, session)
		s.drop(session)
	}
}

func (s *Speaker) close() {
	for _, r := range s.receivers {
		r.close()
	}
	for _, session := range s.byName {
		session.close()
	}
}

// Status returns the state of the sessions, in the order of their neighbors.
func (s *Speaker) Status(ctx context.Context) (model.BFDStatus, error) {
	status := model.BFDStatus{VRFs: true, Sessions: []model.BFDSessionStatus{}}
	err := s.inLoop(ctx, func() {
		for _, session := range s.sessions {
			one := session.status()
			if problem := s.problems[session.receives]; problem != "" {
				one.Problem = problem
			}
			status.Sessions = append(status.Sessions, one)
		}
		for why := Accepted + 1; why < discardReasons; why++ {
			status.Discards = append(status.Discards, model.Tallied{Name: why.String(), Count: s.discards[why]})
		}
		status.Late = model.Duration(s.late)
	})
	if err != nil {
		return model.BFDStatus{}, err
	}
	slices.SortFunc(status.Sessions, func(a, b model.BFDSessionStatus) int {
		return cmp.Or(a.Neighbor.Compare(b.Neighbor), cmp.Compare(a.VRF, b.VRF), a.Source.Compare(b.Source), cmp.Compare(fmt.Sprint(a.Multihop), fmt.Sprint(b.Multihop)))
	})
	return status, nil
}

// inLoop runs f in the goroutine that owns the state, and waits for it.
func (s *Speaker) inLoop(ctx context.Context, f func()) error {
	done := make(chan struct{})
	s.request(ctx, func() { f(); close(done) })
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("ask the BFD speaker: %w", ctx.Err())
	}
}

// request lets the goroutine that owns the state run f.
func (s *Speaker) request(ctx context.Context, f func()) {
	select {
	case s.requests <- f:
	case <-ctx.Done():
	}
}

// noteForwarding takes the state of the interfaces.
func (s *Speaker) noteForwarding(ctx context.Context, does map[string]Forwarding) {
	s.request(ctx, func() {
		s.does = does
		s.look(time.Now())
	})
}

// look holds the sessions down whose interfaces do not forward, and those that no process has asked
// for in time: then no process answers for this director any more.
func (s *Speaker) look(now time.Time) {
	s.expiry = time.Time{}
	for _, session := range s.sessions {
		why := held(session.want.Interfaces, s.does)
		switch end := s.renewed.Add(time.Duration(session.want.RestartTime)); {
		case !now.Before(end):
			why = ForwardingReset
			s.abandon(session)
		default:
			session.abandoned = false
			if s.expiry.IsZero() || end.Before(s.expiry) {
				s.expiry = end
			}
		}
		session.Hold(now, why)
	}
}

// abandon says once that a session is taken down because no process asks for it.
func (s *Speaker) abandon(session *session) {
	if session.abandoned {
		return
	}
	session.abandoned = true
	neighbor, restart := session.want.Name(), session.want.RestartTime
	s.say(func(log *slog.Logger) {
		log.Warn("nobody has asked for a BFD session for its restart time: it is taken down", "neighbor", neighbor, "restart-time", restart)
	})
}

// Look looks at the datapath now.
func (s *Speaker) Look(ctx context.Context) {
	s.watcher.check(func(does map[string]Forwarding) { s.noteForwarding(ctx, does) })
}

// say logs something, unless the reader of the log has stopped: that must not stop the sessions.
func (s *Speaker) say(event func(*slog.Logger)) {
	select {
	case s.events <- event:
	default:
	}
}

// note remembers that a session's state has changed, and wakes all readers that wait for
// changes. The end of a hold is such a change, too: the state shows it only when the
// neighbor has been heard, up to a second later.
func (s *Speaker) note(now time.Time, session *session) {
	if held := session.Held(); held != session.saidHeld {
		session.saidHeld = held
		s.renew()
	}
	state, why := session.State()
	if state == session.told && why == session.why {
		return
	}
	neighbor, from, says, after := session.want.Name(), session.told, session.Remote().Diagnostic, now.Sub(session.since)
	level := slog.LevelInfo
	if from == Up {
		level = slog.LevelWarn
	}
	s.say(func(log *slog.Logger) {
		log.Log(context.Background(), level, "BFD session changed", "neighbor", neighbor, "from", from, "to", state, "why", why,
			"neighbor-says", says, "after", after.Round(time.Millisecond))
	})
	if state != from {
		session.since = now
		session.changes++
	}
	session.told, session.why = state, why
	s.renew()
}

// renew wakes the readers that wait for a change.
func (s *Speaker) renew() {
	fresh := make(chan struct{})
	if old := s.changed.Swap(&fresh); old != nil {
		close(*old)
	}
}

// Changed returns a channel that is closed when the state of a session changes.
func (s *Speaker) Changed() <-chan struct{} { return *s.changed.Load() }
