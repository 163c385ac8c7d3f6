package bfd

import (
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
	want   model.BFDSession
	kind   kind
	sender *sender // nil: not open; see problem

	problem        string
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
	return &session{
		Machine: NewMachine(now, discriminator, timersOf(want.Timers), random), want: want,
		kind: kindOf(want.Neighbor, want.Multihop), since: now, told: Down,
	}
}

// from reports whether a packet that names no session is this one's.
func (s *session) from(a *arrival, k kind) bool {
	return s.kind == k && s.want.Neighbor == a.from && (!s.want.Source.IsValid() || s.want.Source == a.to)
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
	sender, err := openSender(s.kind, s.want.Source, s.want.Neighbor, random)
	if err != nil {
		s.problem = err.Error()
		return false
	}
	s.sender, s.problem = sender, ""
	return true
}

// send sends a packet. Where it cannot be sent, the neighbour's patience is what ends
// the session, as when it is lost on the way.
func (s *session) send(now time.Time, packet []byte, random *rand.Rand) {
	if !s.open(now, random) {
		return
	}
	if err := s.sender.send(packet); err != nil {
		if text := "send: " + err.Error(); s.problem != text {
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
