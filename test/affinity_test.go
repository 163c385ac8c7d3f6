package test

import (
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// Open connections in gue stay where they are when their service hashes source addresses instead of
// flows, and when a director with only the first one's state takes over while weights change:
// packets name the candidates of both rings. New connections are placed only by the new affinity.
//
//	client --- router --- switch --- director, then another
//	                             --- backend1, backend2, backend3
func TestConnectionsOutliveAnotherAffinity(t *testing.T) {
	t.Parallel()
	l := newChanceLab(t, "1", "")
	text := func(director int, affinity string, backends ...backend) string {
		return strings.ReplaceAll(l.text(director, backends...), "  backends:\n", "  affinity: "+affinity+"\n  backends:\n")
	}
	l.running = startDaemon(t, l.director, "run", text(directorHost, "flow", everyBackend(3)...))
	var sessions []*session
	open := func(n int) {
		for _, w := range gueWays {
			for range n {
				sessions = append(sessions, l.open(t, w))
			}
		}
	}
	open(20)
	l.running.edit(text(directorHost, "source-ip", everyBackend(3)...))
	l.running.waitFor("have two affinities", func() bool { return l.running.generations(2) })
	l.stay(t, sessions, "another affinity")
	if passed := l.count(t, "passed_on"); passed == 0 {
		t.Error("no packet was sent on: nothing moved")
	}
	first := len(sessions)
	open(5)
	by := map[way]string{}
	for _, s := range sessions[first:] {
		if backend, known := by[s.way]; known && backend != s.backend {
			t.Errorf("%s: connections of one source address are on %s and %s", s.way, backend, s.backend)
		}
		by[s.way] = s.backend
	}
	l.replaceDirector(t, text(otherDirector, "source-ip", backend{number: 1, weight: 300}, backend{number: 2}, backend{number: 3, weight: 50}))
	l.stay(t, sessions, "another director and other weights at once")
	l.running.edit(text(otherDirector, "flow", everyBackend(3)...))
	l.running.waitFor("have it wait", func() bool {
		services, err := l.running.services()
		return err == nil && len(services) > 0 && waits(services)
	})
	l.stay(t, sessions, "the way back, which waits")
}

func waits(services []model.ServiceStatus) bool {
	for _, s := range services {
		if !s.Log.Waits {
			return false
		}
	}
	return true
}

// stay asks on all connections.
func (l *chanceLab) stay(t *testing.T, sessions []*session, what string) {
	t.Helper()
	for _, s := range sessions {
		if got := s.ask(t); got != s.backend {
			t.Fatalf("%s: %s has a connection of %s", what, got, s.backend)
		}
	}
	for _, never := range []string{"decap_last_resort", "drop_row_malformed", "drop_not_peer"} {
		if n := l.count(t, never); n > 0 {
			t.Errorf("%s: the agents count %d packets as %s", what, n, never)
		}
	}
}
