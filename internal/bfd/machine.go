package bfd

import (
	"math/rand/v2"
	"time"
)

// slow is the shortest interval between packets, and the shortest that is promised,
// while a session is not Up (RFC 5880 6.8.3).
const slow = time.Second

// Timers are what one end asks for. Both ends send as slowly as the slower of them
// wants.
type Timers struct {
	Tx         time.Duration // between packets of this end
	Rx         time.Duration // between packets of the neighbour
	Multiplier uint8         // packets that the neighbour must miss in a row
}

// Machine is the state machine and the timers of one session (RFC 5880 6.8). It is not
// for more than one goroutine.
type Machine struct {
	local  uint32 // discriminator
	timers Timers
	random *rand.Rand
	proved bool // all packets are signed: who sends one is the neighbour

	state      State
	diagnostic Diagnostic
	hold       Diagnostic    // why it is to be Down; NoDiagnostic: it is not
	poll       bool          // packets carry Poll until one with Final comes
	pollAgain  bool          // what the poll under way does not announce has changed since
	final      bool          // a Poll is to be answered
	changed    bool          // the neighbour has not been told of the last change
	losses     uint64        // how often it was Up and then was not, but for the neighbour's own will
	lastLoss   Diagnostic    // why, the last time
	tx, rx     time.Duration // in force; what is announced may wait for the end of the poll

	remote          Packet        // the last one; zero before the first, or long after the last
	heard           time.Time     // when that was; zero: not at all
	claim           Packet        // the last one since then that is in doubt; see doubts
	claimed         time.Time     // when that was; zero: there is none
	sent            time.Time     // when the last packet was
	next            time.Time     // when the next is due, if packets are sent periodically
	wait            time.Duration // what next was computed from
	hushed          time.Time     // when a Poll is answered at the earliest
	began, disabled time.Time
}

// hush is how long a session that this end has taken down leaves Polls unanswered, although
// RFC 5880 (6.5) wants an answer as soon as practicable. The neighbour polls as soon as it hears
// of it, and the answer says Down, too: so it goes on from Down to Init. BIRD's BGP asks only now
// and then which state a session has, and finds one that was Up and is in Init not lost: on a
// busy router one in six losses was never noticed when this came within 0.1 ms.
const hush = 200 * time.Millisecond

// NewMachine makes a session that begins now, Down. The discriminator must not be 0 and
// not be another session's; the random numbers are those of the jitter.
func NewMachine(now time.Time, discriminator uint32, t Timers, random *rand.Rand) *Machine {
	m := &Machine{local: discriminator, timers: t, random: random, state: Down, began: now, hushed: now, next: now}
	m.forget()
	m.apply()
	return m
}

// State returns the session's state and why it is so.
func (m *Machine) State() (State, Diagnostic) { return m.state, m.diagnostic }

// Held returns why this end keeps the session down, NoDiagnostic if it does not.
func (m *Machine) Held() Diagnostic { return m.hold }

// Losses returns how often the session was Up and then was not because of a failure, and
// of which the last time. That somebody switches it off is none (RFC 5882 4.2).
func (m *Machine) Losses() (n uint64, last Diagnostic) { return m.losses, m.lastLoss }

// Remote returns what was last heard; Mine is 0 when nothing was, or when that is too
// long ago.
func (m *Machine) Remote() Packet { return m.remote }

// Discriminator is this end's name for the session.
func (m *Machine) Discriminator() uint32 { return m.local }

// Receive takes a packet that is for this session, and returns Accepted, or that it changes
// nothing for now.
func (m *Machine) Receive(now time.Time, p Packet) Discard {
	p.Auth = nil // it is a part of the receiver's buffer
	if m.doubts(p) {
		m.claim, m.claimed = p, now
		return DiscardDoubted
	}
	m.remote, m.heard, m.claimed = p, now, time.Time{}
	if p.Final && m.poll {
		m.endPoll()
	}
	if m.state == AdminDown {
		return Accepted
	}
	switch {
	case p.State == AdminDown:
		if m.state != Down {
			m.enter(Down, NeighborDown)
		}
	case m.state == Down && m.hold != NoDiagnostic:
	case m.state == Down && p.State == Down:
		m.enter(Init, m.diagnostic)
	case m.state == Down && p.State == Init, m.state == Init && (p.State == Init || p.State == Up):
		m.enter(Up, NoDiagnostic)
	case m.state == Up && p.State == Down:
		m.enter(Down, NeighborDown)
	}
	if p.Poll {
		m.final = true
	}
	m.reschedule(now)
	return Accepted
}

// doubts reports whether a packet says nothing until those have stopped that are right. It does
// not name this session (Your Discriminator is 0), so anybody can write it who knows two
// addresses: a neighbour that has begun anew, or has missed this end, or somebody else. RFC 5880
// (6.8.6) lets it end a session. But a neighbour that sends it sends no other packets any more,
// and these did name the session: when they have not come for the detection time, the packet is
// believed (see Advance). So a neighbour's restart is seen no later than its silence is, and
// nobody can end a session with one packet. One that is signed is believed at once.
func (m *Machine) doubts(p Packet) bool {
	return !m.proved && p.Yours == 0 && m.remote.Yours != 0 && (m.state == Init || m.state == Up)
}

// enter changes the state.
func (m *Machine) enter(s State, why Diagnostic) {
	m.changed = m.changed || s != m.state || why != m.diagnostic
	wasUp := m.state == Up
	m.state, m.diagnostic = s, why
	if wasUp && s == Down && m.remote.State != AdminDown {
		m.losses++
		m.lastLoss = why
	}
	switch {
	case wasUp == (s == Up):
	case m.timers.Tx < slow:
		m.announce() // another interval than before
	default:
		m.apply()
	}
}

// announce begins to tell the neighbour that a timer has changed (6.8.3, 6.5).
func (m *Machine) announce() {
	m.apply()
	if m.remote.Mine == 0 {
		m.poll, m.pollAgain = false, false // nobody to ask; the first packet that is heard says all
		return
	}
	m.pollAgain, m.poll = m.poll, true
}

// apply brings the intervals in force as near to what is announced as is allowed:
// while the session is Up, what makes this end slower, or its patience shorter, has to
// wait until the neighbour knows.
func (m *Machine) apply() {
	if m.state == Up {
		m.tx, m.rx = min(m.tx, m.desired()), max(m.rx, m.timers.Rx)
		return
	}
	m.tx, m.rx = m.desired(), m.timers.Rx
}

func (m *Machine) endPoll() {
	m.poll, m.pollAgain = m.pollAgain, false
	if !m.poll {
		m.tx, m.rx = m.desired(), m.timers.Rx
	}
}

// desired is the interval that this end announces.
func (m *Machine) desired() time.Duration {
	if m.state == Up {
		return m.timers.Tx
	}
	return max(m.timers.Tx, slow)
}

// Set changes the timers.
func (m *Machine) Set(now time.Time, t Timers) {
	if t == m.timers {
		return
	}
	m.timers = t
	m.announce()
	m.reschedule(now)
}

// Hold takes the session down, says why, and keeps it there until it is called with
// NoDiagnostic (6.8.15, 6.8.18).
func (m *Machine) Hold(now time.Time, why Diagnostic) {
	if m.hold == why || m.state == AdminDown {
		return
	}
	if m.hold = why; why == NoDiagnostic {
		m.hushed = m.began
		return
	}
	if m.state == Up {
		m.hushed = now.Add(hush)
	}
	m.enter(Down, why)
	m.reschedule(now)
}

// Disable switches the session off for good (6.8.16).
func (m *Machine) Disable(now time.Time) {
	if m.state == AdminDown {
		return
	}
	m.disabled = now
	m.enter(AdminDown, AdministrativelyDown)
	m.reschedule(now)
}

// Gone reports whether the session was switched off so long ago that the neighbour has
// heard of it: nothing more has to be sent.
func (m *Machine) Gone(now time.Time) bool {
	return m.state == AdminDown && now.Sub(m.disabled) >= time.Duration(m.timers.Multiplier)*max(m.tx, m.remote.RequiredRx)
}

// Detection is how long the neighbour may be silent (6.8.4); 0 before it was heard.
func (m *Machine) Detection() time.Duration {
	return time.Duration(m.remote.Multiplier) * max(m.rx, m.remote.DesiredTx)
}

// Interval is the time between packets of this end, before jitter (6.8.7).
func (m *Machine) Interval() time.Duration { return max(m.tx, m.remote.RequiredRx) }

// Advance does what time does: a neighbour that was silent for too long is lost.
func (m *Machine) Advance(now time.Time) {
	if m.heard.IsZero() || now.Sub(m.heard) < m.Detection() {
		return
	}
	if !m.claimed.IsZero() {
		m.believe(now)
		return
	}
	if m.state == Init || m.state == Up {
		m.enter(Down, DetectionExpired)
	}
	// It may come back as another session, with another discriminator (6.8.1).
	m.forget()
	m.reschedule(now)
}

// believe takes what a neighbour has said that has stopped to name the session: that it is down,
// and another one from now on. Its other packets are answered as those of one that was Down
// before, from the next one on. That it is switched off there is no better than its silence, which
// is a failure: else whoever knows two addresses could keep a real one from being told.
func (m *Machine) believe(now time.Time) {
	unsaid := m.state == Up && m.claim.State == AdminDown
	m.remote, m.heard, m.claimed = m.claim, m.claimed, time.Time{}
	m.poll, m.pollAgain = false, false // what was asked was asked of another session
	m.enter(Down, NeighborDown)
	if unsaid {
		m.losses++
		m.lastLoss = NeighborDown
	}
	m.reschedule(now)
	if now.Sub(m.heard) >= m.Detection() {
		m.forget() // it was the last one
	}
}

// forget makes the neighbour one that was never heard. One that wanted no packets, or
// asked for demand mode, is not to have silenced this end for good.
func (m *Machine) forget() {
	m.remote = Packet{State: Down, RequiredRx: time.Microsecond} // bfd.RemoteMinRxInterval begins as 1 (6.8.1)
	m.heard, m.claimed = time.Time{}, time.Time{}
	m.poll, m.pollAgain = false, false
}

// Due returns the packet that is to be sent now, if one is. It is to be called until it
// returns none.
func (m *Machine) Due(now time.Time) (p Packet, due bool) {
	switch {
	case m.final && !now.Before(m.hushed):
		// Whatever the timers say, and beside what they say (6.8.7).
		m.final, m.changed = false, false
		p = m.packet()
		p.Final = true
		return p, true
	case m.changed, m.periodic() && !now.Before(m.next):
		m.changed, m.sent = false, now
		m.wait = m.Interval()
		m.next = now.Add(m.jittered())
		p = m.packet()
		p.Poll = m.poll
		return p, true
	}
	return Packet{}, false
}

// periodic reports whether packets are sent by the timer: not when the neighbour wants
// none, nor while it is in demand mode and nothing is asked of it (6.8.7).
func (m *Machine) periodic() bool {
	demand := m.remote.Demand && m.state == Up && m.remote.State == Up
	return m.remote.RequiredRx > 0 && (!demand || m.poll)
}

// reschedule makes the next packet's time follow an interval that has changed.
func (m *Machine) reschedule(now time.Time) {
	if m.wait == m.Interval() || m.sent.IsZero() {
		return
	}
	m.wait = m.Interval()
	if m.next = m.sent.Add(m.jittered()); m.next.Before(now) {
		m.next = now
	}
}

// jittered is the interval less 0 to 25 %, or less 10 to 25 % where a single lost packet
// is the neighbour's end of patience (6.8.7).
func (m *Machine) jittered() time.Duration {
	share := m.random.Float64() / 4
	if m.timers.Multiplier == 1 {
		share = 0.1 + m.random.Float64()*0.15
	}
	return time.Duration(float64(m.Interval()) * (1 - share))
}

// packet is what this end has to say now. Demand mode is never asked for: silence would
// then be a good sign, and here it is to be the bad one.
func (m *Machine) packet() Packet {
	return Packet{
		State: m.state, Diagnostic: m.diagnostic, Independent: true, Multiplier: m.timers.Multiplier,
		Mine: m.local, Yours: m.remote.Mine, DesiredTx: m.desired(), RequiredRx: m.timers.Rx,
	}
}

// Next is when Advance or Due next have something to do: in the past when it is due
// now, and the zero time when there is nothing until a packet comes.
func (m *Machine) Next() time.Time {
	if m.changed {
		return m.began // long past
	}
	var next time.Time
	if m.periodic() {
		next = m.next
	}
	if m.final && (next.IsZero() || m.hushed.Before(next)) {
		next = m.hushed // long past, mostly
	}
	if !m.heard.IsZero() {
		if end := m.heard.Add(m.Detection()); next.IsZero() || end.Before(next) {
			next = end
		}
	}
	return next
}
