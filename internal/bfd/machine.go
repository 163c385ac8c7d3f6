package bfd

import (
	"math/rand/v2"
	"time"
)

// slow is the shortest interval between packets, and the shortest that is announced, while a
// session is not Up (RFC 5880 6.8.3).
const slow = time.Second

// Timers are what one end asks for. Each direction uses the slower of what the two ends want.
type Timers struct {
	Tx         time.Duration // between packets of this end
	Rx         time.Duration // between packets of the neighbor
	Multiplier uint8         // packets that the neighbor must miss in a row
}

// Machine is the state machine and the timers of one session (RFC 5880 6.8). It is for one
// goroutine only.
type Machine struct {
	local  uint32 // discriminator
	timers Timers
	random *rand.Rand
	proved bool // all packets are signed: only the neighbor can send one

	state      State
	diagnostic Diagnostic
	hold       Diagnostic    // why it is held Down; NoDiagnostic: it is not held
	poll       bool          // packets carry Poll until one with Final comes
	pollAgain  bool          // something that the current poll does not announce has changed
	final      bool          // a Poll must be answered
	changed    bool          // no packet has told the neighbor of the last change
	losses     uint64        // how often it went from Up to down, except when the neighbor switched it off
	lastLoss   Diagnostic    // why, the last time
	tx, rx     time.Duration // in force; announced ones may wait for the end of the poll

	remote          Packet        // the last packet; zero before the first, or long after the last
	heard           time.Time     // when that was; zero: never
	doubtful        Packet        // the last packet since then that is in doubt; see doubts
	doubtfulAt      time.Time     // when that was; zero: there is none
	sent            time.Time     // when the last packet was sent
	next            time.Time     // when the next packet is due, if they are sent periodically
	wait            time.Duration // what next was computed from
	hushed          time.Time     // the earliest time to answer a Poll
	began, disabled time.Time
}

// hush is how long a session that this end has taken down leaves Polls unanswered, although RFC
// 5880 (6.5) wants an answer as soon as practicable. The neighbor polls as soon as it hears of it,
// and the answer says Down, too: so the neighbor goes on from Down to Init. BIRD's BGP asks only
// from time to time for a session's state, and does not count one as lost that was Up and is in
// Init: on a busy router one in six losses was never noticed when the answer came within 0.1 ms.
const hush = 200 * time.Millisecond

// NewMachine makes a session that begins now, Down. The discriminator must not be 0 or another
// session's; the random numbers are those of the jitter.
func NewMachine(now time.Time, discriminator uint32, t Timers, random *rand.Rand) *Machine {
	m := &Machine{local: discriminator, timers: t, random: random, state: Down, began: now, hushed: now, next: now}
	m.forget()
	m.apply()
	return m
}

// State returns the session's state and the reason for it.
func (m *Machine) State() (State, Diagnostic) { return m.state, m.diagnostic }

// Held returns why this end keeps the session down, or NoDiagnostic.
func (m *Machine) Held() Diagnostic { return m.hold }

// Losses returns how often the session went down from Up because of a failure, and the last
// failure. Switching the session off is no failure (RFC 5882 4.2).
func (m *Machine) Losses() (n uint64, last Diagnostic) { return m.losses, m.lastLoss }

// Remote returns what was last heard; Mine is 0 if nothing was heard, or too long ago.
func (m *Machine) Remote() Packet { return m.remote }

// Discriminator is this end's name for the session.
func (m *Machine) Discriminator() uint32 { return m.local }

// Receive takes a packet for this session, and returns Accepted, or why the packet changes nothing.
func (m *Machine) Receive(now time.Time, p Packet) Discard {
	p.Auth = nil // it is a part of the receiver's buffer
	if m.doubts(p) {
		m.doubtful, m.doubtfulAt = p, now
		return DiscardDoubted
	}
	m.remote, m.heard, m.doubtfulAt = p, now, time.Time{}
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

// doubts reports whether a packet must wait until packets that name the session have stopped. It
// does not name this session (Your Discriminator is 0), so any host that knows two addresses can
// send it: a neighbor that has begun anew, or has not heard this end, or an attacker. RFC 5880
// (6.8.6) lets it end a session. But a neighbor that sends it no longer sends packets that name the
// session: when none have come for the detection time, the packet is believed (see Advance). So a
// neighbor's restart is seen no later than its silence, and an attacker cannot end a session with
// one packet. A signed packet is believed at once.
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
		m.announce() // the interval has changed
	default:
		m.apply()
	}
}

// announce begins to tell the neighbor that a timer has changed (6.8.3, 6.5).
func (m *Machine) announce() {
	m.apply()
	if m.remote.Mine == 0 {
		m.poll, m.pollAgain = false, false // there is no neighbor to ask; its first packet says all
		return
	}
	m.pollAgain, m.poll = m.poll, true
}

// apply brings the intervals in force as near to the announced ones as allowed: while the session
// is Up, a change that makes this end slower, or its patience shorter, has to wait until the
// neighbor knows.
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

// Gone reports whether the session was switched off so long ago that the neighbor has heard of it:
// no more packets have to be sent.
func (m *Machine) Gone(now time.Time) bool {
	return m.state == AdminDown && now.Sub(m.disabled) >= time.Duration(m.timers.Multiplier)*max(m.tx, m.remote.RequiredRx)
}

// Detection is how long the neighbor may be silent (6.8.4); 0 before it was heard.
func (m *Machine) Detection() time.Duration {
	return time.Duration(m.remote.Multiplier) * max(m.rx, m.remote.DesiredTx)
}

// Interval is the time between packets of this end, before jitter (6.8.7).
func (m *Machine) Interval() time.Duration { return max(m.tx, m.remote.RequiredRx) }

// Advance applies the passing of time: a neighbor that was silent for too long is lost.
func (m *Machine) Advance(now time.Time) {
	if m.heard.IsZero() || now.Sub(m.heard) < m.Detection() {
		return
	}
	if !m.doubtfulAt.IsZero() {
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

// believe takes the packet of a neighbor that no longer names the session: the session is down, and
// a new one from now on. From the next packet on, packets are answered as those of a session that
// was Down before. A packet that says that the session is switched off counts as silence, which is
// a failure: else a host that knows two addresses could hide a real failure.
func (m *Machine) believe(now time.Time) {
	unsaid := m.state == Up && m.doubtful.State == AdminDown
	m.remote, m.heard, m.doubtfulAt = m.doubtful, m.doubtfulAt, time.Time{}
	m.poll, m.pollAgain = false, false // the poll was for another session
	m.enter(Down, NeighborDown)
	if unsaid {
		m.losses++
		m.lastLoss = NeighborDown
	}
	m.reschedule(now)
	if now.Sub(m.heard) >= m.Detection() {
		m.forget() // it was the neighbor's last packet
	}
}

// forget makes the neighbor count as never heard. A neighbor that wanted no packets, or asked for
// demand mode, must not silence this end for good.
func (m *Machine) forget() {
	m.remote = Packet{State: Down, RequiredRx: time.Microsecond} // bfd.RemoteMinRxInterval begins as 1 (6.8.1)
	m.heard, m.doubtfulAt = time.Time{}, time.Time{}
	m.poll, m.pollAgain = false, false
}

// Due returns the packet to send now, if there is one. It must be called until it returns none.
func (m *Machine) Due(now time.Time) (p Packet, due bool) {
	switch {
	case m.final && !now.Before(m.hushed):
		// Regardless of the timers, and in addition to them (6.8.7).
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

// periodic reports whether packets are sent by the timer: not when the neighbor wants none, nor
// while it is in demand mode and there is no poll (6.8.7).
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

// jittered is the interval less 0 to 25 %, or less 10 to 25 % if the neighbor's patience ends with
// a single lost packet (6.8.7).
func (m *Machine) jittered() time.Duration {
	share := m.random.Float64() / 4
	if m.timers.Multiplier == 1 {
		share = 0.1 + m.random.Float64()*0.15
	}
	return time.Duration(float64(m.Interval()) * (1 - share))
}

// packet is this end's current packet. Demand mode is never asked for: silence would then be a good
// sign, but here it must be a bad one.
func (m *Machine) packet() Packet {
	return Packet{
		State: m.state, Diagnostic: m.diagnostic, Independent: true, Multiplier: m.timers.Multiplier,
		Mine: m.local, Yours: m.remote.Mine, DesiredTx: m.desired(), RequiredRx: m.timers.Rx,
	}
}

// Next is when Advance or Due next have something to do: in the past if it is due now, and the zero
// time if there is nothing until a packet comes.
func (m *Machine) Next() time.Time {
	if m.changed {
		return m.began // long past
	}
	var next time.Time
	if m.periodic() {
		next = m.next
	}
	if m.final && (next.IsZero() || m.hushed.Before(next)) {
		next = m.hushed // usually long past
	}
	if !m.heard.IsZero() {
		if end := m.heard.Add(m.Detection()); next.IsZero() || end.Before(next) {
			next = end
		}
	}
	return next
}
