package bfd

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

func TestHeld(t *testing.T) {
	does := map[string]Forwarding{"up": Forwards, "up2": Forwards, "down": LinkDown, "off": Detached}
	for _, c := range []struct {
		interfaces []string
		want       Diagnostic
	}{
		{[]string{"up"}, NoDiagnostic},
		{[]string{"up", "up2"}, NoDiagnostic},
		{[]string{"up", "down"}, NoDiagnostic}, // nothing comes by the one that is down
		{[]string{"down"}, PathDown},
		{[]string{"off"}, ForwardingReset},
		{[]string{"up", "off"}, ForwardingReset}, // what comes by the other is lost
		{[]string{"down", "off"}, ForwardingReset},
		{[]string{"unknown"}, PathDown},
		{nil, PathDown},
	} {
		if got := held(c.interfaces, does); got != c.want {
			t.Errorf("%q: %v, want %v", c.interfaces, got, c.want)
		}
	}
}

// A session is up for its own restart time after it was asked for last, and no longer.
func TestRestartTime(t *testing.T) {
	now := time.Unix(1e9, 0)
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	s := NewSpeaker(still{}, slog.New(slog.DiscardHandler))
	s.renewed, s.does = now, map[string]Forwarding{"eth0": Forwards}
	wants := []model.BFDSession{
		{Neighbor: netip.MustParseAddr("10.0.0.1"), Interfaces: []string{"eth0"}, RestartTime: model.Duration(5 * time.Second)},
		{Neighbor: netip.MustParseAddr("10.0.0.2"), Interfaces: []string{"eth0"}, RestartTime: model.Duration(time.Minute)},
	}
	for _, want := range wants {
		s.add(now, want)
	}
	for _, step := range []struct {
		now, renewed int
		held         [2]Diagnostic
		expiry       int // 0: none
	}{
		{now: 0, expiry: 5},
		{now: 4, expiry: 5},
		{now: 5, held: [2]Diagnostic{ForwardingReset, NoDiagnostic}, expiry: 60},
		{now: 60, held: [2]Diagnostic{ForwardingReset, ForwardingReset}},
		{now: 61, renewed: 61, expiry: 66},
		{now: 66, renewed: 61, held: [2]Diagnostic{ForwardingReset, NoDiagnostic}, expiry: 121},
	} {
		s.renewed = at(step.renewed)
		s.look(at(step.now))
		for i, want := range wants {
			if got := s.sessions[keyOf(want)].Held(); got != step.held[i] {
				t.Errorf("after %d s, asked for at %d s: the session with %s is held by %v, want %v", step.now, step.renewed, want.Neighbor, got, step.held[i])
			}
		}
		if none := step.expiry == 0; none != s.expiry.IsZero() || !none && !s.expiry.Equal(at(step.expiry)) {
			t.Errorf("after %d s, the next one is abandoned at %v", step.now, s.expiry.Sub(now))
		}
	}
}

// A reader that waits for changes learns that a session is held down, and when that ends: BGP
// opens no session meanwhile.
func TestHoldIsSaid(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := NewSpeaker(still{}, slog.New(slog.DiscardHandler))
	s.renewed, s.does = now, map[string]Forwarding{"eth0": Forwards}
	want := model.BFDSession{Neighbor: netip.MustParseAddr("10.0.0.1"), Interfaces: []string{"eth0"}, RestartTime: model.Duration(time.Hour)}
	s.add(now, want)
	session := s.sessions[keyOf(want)]
	for _, step := range []struct {
		does Forwarding
		said bool
	}{{Forwards, false}, {Detached, true}, {Detached, false}, {Forwards, true}, {Forwards, false}, {LinkDown, true}, {Detached, true}, {Forwards, true}} {
		changed := s.Changed()
		s.does = map[string]Forwarding{"eth0": step.does}
		s.look(now)
		s.note(now, session)
		said := false
		select {
		case <-changed:
			said = true
		default:
		}
		if said != step.said {
			t.Errorf("when the interface does %d, a change is said: %v, want %v", step.does, said, step.said)
		}
	}
}
