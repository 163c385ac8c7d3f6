package bfd

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// key is what two sessions cannot have in common.
type key struct {
	neighbor, source netip.Addr
	multihop         bool
}

func keyOf(s model.BFDSession) key { return key{s.Neighbor, s.Source, s.Multihop} }

func timersOf(b model.BFDTimers) Timers {
	return Timers{Tx: time.Duration(b.Interval), Rx: time.Duration(b.Interval), Multiplier: b.Multiplier}
}

// session is a machine and its way to the neighbour.
type session struct {
	*Machine
	want    model.BFDSession
	kind    kind
	address netip.Addr // the neighbour's, without a zone
	index   int        // of the interface that a link-local neighbour is on; 0: it is not, or there is none
	sender  *sender    // nil: not open; see problem
	guard   guard

	receives       place     // where its packets are received
	problem        string    // why no packets can be sent
	refused        string    // why the last packet that was for it was not taken
	tried          time.Time // when it was last tried to open the sender
	since          time.Time // of the state
	changes        uint64
	received, left uint64 // packets
	abandoned      bool   // nobody has asked for it for its restart time
	told           State  // that of which was logged last
	why            Diagnostic
	saidHeld       Diagnostic // what those know who wait for changes
}

func newSession(now time.Time, want model.BFDSession, discriminator uint32, random *rand.Rand) *session {
	s := &session{
		Machine: NewMachine(now, discriminator, timersOf(want.Timers), random), want: want,
		kind: kindOf(want.Neighbor, want.Multihop), address: want.Neighbor.WithZone(""), since: now, told: Down,
	}
	s.guard.sent = random.Uint32() // bfd.XmitAuthSeq begins anywhere (6.8.1)
	return s
}

// leastTTL is what a packet's TTL has to be at least.
func (s *session) leastTTL() int {
	switch {
	case !s.kind.multihop:
		return gtsm // it has passed no router (RFC 5881 5)
	case s.want.TTLSecurity == 0:
		return 0
	}
	return gtsm + 1 - int(s.want.TTLSecurity)
}

// take takes a packet that is this session's by its addresses or its name for it.
func (s *session) take(now time.Time, p Packet, a *arrival) Discard {
	if a.ttl < s.leastTTL() {
		// Without the TTL that it has: who sends from another address chooses it, and each would be
		// another problem.
		s.refused = fmt.Sprintf("packets with its address come with a TTL of less than %d, the least that ttl-security allows", s.leastTTL())
		return DiscardTTL
	}
	if s.refused = s.guard.check(now, &p, a.payload); s.refused != "" {
		return DiscardAuth
	}
	if why := s.Receive(now, p); why != Accepted {
		return why
	}
	s.received++
	s.guard.accepted(now, s.Detection())
	return Accepted
}

// from reports whether a packet that names no session is this one's.
func (s *session) from(a *arrival, k kind) bool {
	return s.kind == k && s.address == a.from && (s.want.Neighbor.Zone() == "" || s.index == a.index) && (!s.want.Source.IsValid() || s.want.Source == a.to)
}

// on notes by which interface a link-local neighbour is reached now: one that was made anew has
// another number.
func (s *session) on(index int) {
	if s.index != index {
		s.index = index
		s.close()
	}
}

// retry is how long after an error a socket is tried again.
const retry = time.Second

// open makes the sender, unless that was in vain just now.
func (s *session) open(now time.Time, random *rand.Rand) bool {
	if s.sender != nil {
		return true
	}
	if !s.tried.IsZero() && now.Sub(s.tried) < retry {
		return false
	}
	s.tried = now
	if zone := s.want.Neighbor.Zone(); zone != "" && s.index == 0 {
		s.problem = fmt.Sprintf("there is no interface %s", zone)
		return false
	}
	sender, err := openSender(s.kind, s.want.Source, s.address, s.index, random)
	if err != nil {
		s.problem = err.Error()
		return false
	}
	s.sender, s.problem = sender, ""
	return true
}

// NotSent begins a session's problem that a packet could not be sent.
const NotSent = "send: "

// send sends a packet. Where it cannot be sent, the neighbour's patience is what ends
// the session, as when it is lost on the way.
func (s *session) send(now time.Time, packet []byte, random *rand.Rand) {
	if s.guard.silent() {
		s.problem = s.guard.problem
		return
	}
	if !s.open(now, random) {
		return
	}
	if err := s.sender.send(packet); err != nil {
		if text := NotSent + err.Error(); s.problem != text {
			s.problem = text
		}
		return
	}
	s.problem = ""
	s.left++
}

func (s *session) close() {
	if s.sender != nil {
		s.sender.close()
		s.sender = nil
	}
}

// held says why the session must be down, by what its interfaces do: NoDiagnostic if it
// need not be. What is down brings nothing that could be lost, so the others decide; but
// one at least has to be up.
func held(interfaces []string, does map[string]Forwarding) Diagnostic {
	up := func(name string) bool { return does[name] != LinkDown }
	switch {
	case slices.ContainsFunc(interfaces, func(name string) bool { return does[name] == Detached }):
		return ForwardingReset
	case !slices.ContainsFunc(interfaces, up):
		return PathDown
	}
	return NoDiagnostic
}
