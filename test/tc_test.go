package test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// If the backends' hosts cannot have XDP, the program on tc does all of second chance by itself.
// Connections outlive the change from XDP to tc, and then changes of the ring and of the director,
// also while they send much.
//
//	client --- router --- switch --- director, then another
//	                             --- backend1, backend2, backend3
func TestConnectionsOutliveChangesOverTC(t *testing.T) {
	t.Parallel()
	l := newChanceLab(t, "1", "")
	l.direct(t, everyBackend(3)...)
	var sessions []*session
	for _, w := range gueWays {
		for range 20 {
			sessions = append(sessions, l.open(t, w))
		}
	}
	for _, a := range l.agents {
		a.catchBy(t, "tc")
	}
	for _, s := range sessions {
		if got := s.ask(t); got != s.backend {
			t.Fatalf("with tc in place of XDP %s has a connection of %s", got, s.backend)
		}
	}
	l.step(t, sessions, "backend1", "a backend drains", func() {
		l.running.edit(l.text(directorHost, backend{number: 1, state: "draining"}, backend{number: 2}, backend{number: 3}))
		l.running.ready()
	})
	for _, s := range sessions {
		s.sendMuch(t)
	}
	l.step(t, sessions, "backend2", "another director and other backends at once", func() {
		l.replaceDirector(t, l.text(otherDirector, backend{number: 1}, backend{number: 2, state: "draining"}, backend{number: 3, state: "draining"}))
	})
}

// catchBy restarts an agent so that it catches packets in this way.
func (d *daemon) catchBy(t *testing.T, attach string) {
	t.Helper()
	d.end(syscall.SIGTERM)
	d.flags = []string{"--attach", attach}
	d.start()
	d.waitFor("answer", d.listens)
	d.waitFor("catch packets by "+attach, func() bool {
		interfaces := d.agentStatus().Interfaces
		byXDP := func(i model.AgentInterface) bool { return i.Ingress == "xdp" }
		return len(interfaces) > 0 && slices.ContainsFunc(interfaces, byXDP) == (attach == "xdp")
	})
}

// sendMuch sends lines of many segments, which the server must answer.
func (s *session) sendMuch(t *testing.T) {
	t.Helper()
	if err := s.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if _, err := fmt.Fprintln(s, strings.Repeat("who? ", 10000)); err != nil {
			t.Fatal(err)
		}
		if name, err := s.lines.ReadString('\n'); err != nil || strings.TrimSpace(name) != s.backend {
			t.Fatalf("%s: %q answers a long line to %s: %v", s.way, name, s.backend, err)
		}
	}
}
