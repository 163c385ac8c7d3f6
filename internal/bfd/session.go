package bfd

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// key is what no two sessions may share.
type key struct {
	neighbor, source netip.Addr
	vrf              string
	multihop         bool
}

func keyOf(s model.BFDSession) key { return key{s.Neighbor, s.Source, s.VRF, s.Multihop} }

func timersOf(b model.BFDTimers) Timers {
	return Timers{Tx: time.Duration(b.Interval), Rx: time.Duration(b.Interval), Multiplier: b.Multiplier}
}

// session is a machine and its way to the neighbor.
type session struct {
	*Machine
	want    model.BFDSession
	kind    kind
	address netip.Addr // the neighbor's, without a zone
	index   int        // of a link-local neighbor's interface; 0: it is not link-local, or there is no interface
	device  int        // of the VRF's device; 0: it is in none, or there is no such device
	sender  *sender    // nil: not open; see problem
	guard   guard

	receives       place     // where its packets are received
	problem        string    // why no packets can be sent
	refused        string    // why the last packet for it was not taken
	tried          time.Time // when opening the sender was last tried
	since          time.Time // of the state
	changes        uint64
	received, left uint64 // packets
	abandoned      bool   // no process has asked for it for its restart time
	told           State  // the state that was last logged
	why            Diagnostic
	saidHeld       Diagnostic // the reason that readers of changes were last told
}

func newSession(now time.Time, want model.BFDSession, discriminator uint32, random *rand.Rand) *session {
	s := &session{
		Machine: NewMachine(now, discriminator, timersOf(want.Timers), random), want: want,
		kind: kindOf(want.Neighbor, want.Multihop), address: want.Neighbor.WithZone(""), since: now, told: Down,
	}
	s.guard.sent = random.Uint32() // bfd.XmitAuthSeq begins anywhere (6.8.1)
	return s
}

// leastTTL is the least TTL of a packet.
func (s *session) leastTTL() int {
	switch {
	case !s.kind.multihop:
		return gtsm // no router has forwarded it (RFC 5881 5)
	case s.want.TTLSecurity == 0:
		return 0
	}
	return gtsm + 1 - int(s.want.TTLSecurity)
}

// take takes a packet that is this session's by its addresses or its discriminator.
func (s *session) take(now time.Time, p Packet, a *arrival) Discard {
	if a.ttl < s.leastTTL() {
		// Without the packet's TTL: a forger chooses it, and each would be another problem.
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

// from reports whether a packet that came at a place may be this session's, by its addresses.
func (s *session) from(a *arrival, p place) bool {
	return s.kind == p.kind && s.want.VRF == p.vrf && s.address == a.from && (s.want.Neighbor.Zone() == "" || s.index == a.index) && (!s.want.Source.IsValid() || s.want.Source == a.to)
}

// on notes by which interface a link-local neighbor is reached now, or by which device another one in
// a VRF: an interface that was made anew has another number.
func (s *session) on(index, device int) {
	if s.index != index || s.device != device {
		s.index, s.device = index, device
		s.close()
	}
}

// tryAgain is how long after an error a socket is tried again.
const tryAgain = time.Second

// open makes the sender, unless that has just failed.
func (s *session) open(now time.Time, random *rand.Rand) bool {
	if s.sender != nil {
		return true
	}
	if !s.tried.IsZero() && now.Sub(s.tried) < tryAgain {
		return false
	}
	s.tried = now
	if zone := s.want.Neighbor.Zone(); zone != "" && s.index == 0 {
		s.problem = fmt.Sprintf("there is no interface %s", zone)
		return false
	}
	sender, err := openSender(s.kind, s.want.VRF, s.want.Source, s.address, s.index, random)
	if err != nil {
		s.problem = err.Error()
		return false
	}
	s.sender, s.problem = sender, ""
	return true
}

// NotSent begins the text of a session's problem that a packet could not be sent.
const NotSent = "send: "

// send sends a packet. If it cannot be sent, the neighbor's patience ends the session, as if it
// were lost on the way.
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

// held says why the session must be down, by the state of its interfaces: NoDiagnostic if it need
// not be. No packets that could be lost come in by an interface that is down, so the others decide;
// but at least one has to be up.
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

// status returns the state of the session.
func (s *session) status() model.BFDSessionStatus {
	state, why := s.State()
	remote := s.Remote()
	status := model.BFDSessionStatus{
		Neighbor: s.want.Neighbor, VRF: s.want.VRF, Source: s.want.Source, Multihop: s.want.Multihop,
		State: state.String(), Since: s.since, Diagnostic: why.String(),
		RemoteState: remote.State.String(), RemoteDiagnostic: remote.Diagnostic.String(),
		Interval: model.Duration(s.Interval()), Detection: model.Duration(s.Detection()),
		Discriminator: s.Discriminator(), Remote: remote.Mine,
		TTLSecurity: s.want.TTLSecurity, Changes: s.changes, Sent: s.left, Received: s.received,
		Problem: cmp.Or(s.problem, s.guard.problem),
	}
	if s.guard.required {
		status.Authentication = s.want.Authentication.Type
	}
	if state != Up {
		status.Refused = s.refused
	}
	if held := s.Held(); held != NoDiagnostic {
		status.Held = held.String()
	}
	if losses, last := s.Losses(); losses > 0 {
		status.Losses, status.LastLoss = losses, last.String()
	}
	return status
}
