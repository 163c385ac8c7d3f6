package test

import (
	"fmt"
	"net"
	"testing"
	"time"
)

const (
	firstPort    = 20000 // of the client, which the tests choose
	unevenLoad   = 60    // connections whose slots all belong to one backend
	mostOfThird  = 30    // of them on any of three backends with p2c: a third and half of that
	leastOfThird = 10    // half of a third
)

// Clients whose connections are all in slots of one backend: the ring gives it all of them, and p2c
// a share like the others'. Connections stay where they are while the policy changes and changes
// back, backends drain, and another director takes over that was told nothing of them.
//
//	client --- router --- switch --- director, then another
//	                             --- backend1, backend2, backend3
func TestTwoChoices(t *testing.T) {
	t.Parallel()
	l := newChanceLab(t, "1", "")
	l.direct(t, everyBackend(3)...)
	w := gueWays[0]
	ports := l.portsOf(t, w, "backend1")
	var sessions []*session
	for _, w := range gueWays {
		for range 10 {
			sessions = append(sessions, l.open(t, w)) // by the ring
		}
	}
	stay := func(what string) {
		t.Helper()
		for _, s := range sessions {
			if got := s.ask(t); got != s.backend {
				t.Fatalf("%s: %s has a connection of %s", what, got, s.backend)
			}
		}
	}

	l.policy = "p2c"
	l.running.edit(l.text(directorHost, everyBackend(3)...))
	l.running.ready()
	opened := map[string]int{}
	for _, port := range ports {
		s := l.openFrom(t, w, port)
		sessions = append(sessions, s)
		opened[s.backend]++
	}
	for _, name := range []string{"backend1", "backend2", "backend3"} {
		if n := opened[name]; n < leastOfThird || n > mostOfThird {
			t.Errorf("of %d connections that the ring gives to backend1, %d went to %s, want %d to %d: %v",
				unevenLoad, n, name, leastOfThird, mostOfThird, opened)
		}
	}
	stay("another policy")
	for _, w := range gueWays[1:] {
		for range 10 {
			sessions = append(sessions, l.open(t, w))
		}
	}
	l.step(t, sessions, "backend1", "a backend drains", func() {
		l.running.edit(l.text(directorHost, backend{number: 1, state: "draining"}, backend{number: 2}, backend{number: 3}))
		l.running.ready()
	})
	l.step(t, sessions, "backend2", "another director and other backends at once", func() {
		l.replaceDirector(t, l.text(otherDirector, backend{number: 1}, backend{number: 2, state: "draining"}, backend{number: 3}))
	})
	l.policy = ""
	l.step(t, sessions, "backend2", "the policy is what it was", func() {
		l.running.edit(l.text(otherDirector, backend{number: 1}, backend{number: 2, state: "draining"}, backend{number: 3}))
		l.running.ready()
	})
	stay("in the end")
}

// portsOf returns ports from which the ring gives the client's connections to one backend. The
// ports are free again.
func (l *chanceLab) portsOf(t *testing.T, w way, backend string) (ports []int) {
	t.Helper()
	for port := firstPort; len(ports) < unevenLoad; port++ {
		s := l.openFrom(t, w, port)
		if s.backend == backend {
			ports = append(ports, port)
		}
		// With a reset, so that neither side remembers the connection.
		if err := s.Conn.(*net.TCPConn).SetLinger(0); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return ports
}

// openFrom opens a connection from a port and asks which backend has it.
func (l *chanceLab) openFrom(t *testing.T, w way, port int) *session {
	t.Helper()
	s, err := l.connectFrom(t, w, port)
	if err != nil {
		t.Fatal(err)
	}
	s.backend = s.ask(t)
	return s
}

// ttlOfBackends is the initial TTL of the first backend; each next one has one more. So a SYN-ACK
// tells its backend, however late the test looks.
const ttlOfBackends = 101

// A SYN that its owner answers late is sent again; by then the owner has one connection more, so
// its backup gets the SYN. The backend whose SYN-ACK the client answers has the connection, though
// packets go to the owner first.
func TestSYNSentAgainToTheOther(t *testing.T) {
	t.Parallel()
	for i, whose := range []string{"owner", "backup"} {
		t.Run("the client answers the "+whose, func(t *testing.T) {
			l := newChanceLab(t, "1", "")
			l.policy = "p2c"
			l.direct(t, everyBackend(3)...)
			for i, b := range l.backends {
				b.Sysctl("net.ipv4.ip_default_ttl", fmt.Sprint(ttlOfBackends+i))
			}
			held := l.holdSYNACKs(t, gueWays[0])
			opened := make(chan error, 1)
			var s *session
			go func() {
				var err error
				s, err = l.connect(t, gueWays[0])
				opened <- err
			}()
			answered := make([]string, 2)
			for i := range answered {
				held.wait(t)
				answered[i] = fmt.Sprintf("backend%d", 1+held.ttl(i)-(ttlOfBackends-1)) // one router is on the way
			}
			held.deliverOnly(t, i)
			select {
			case err := <-opened:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(60 * time.Second):
				t.Fatalf("the client does not answer the SYN-ACK of %s", answered[i])
			}
			for range 3 {
				if got := s.ask(t); got != answered[i] {
					t.Fatalf("%s has the connection, the client answered %s", got, answered[i])
				}
			}
			held.release(t) // now the client gets the last SYN-ACK, too
			for range 3 {
				if got := s.ask(t); got != answered[i] {
					t.Fatalf("%s has the connection, the client answered %s", got, answered[i])
				}
			}
			accepted := int64(0)
			for _, server := range l.servers {
				accepted += server.accepted.Load()
			}
			if n := l.count(t, "decap_last_resort"); n > 0 || accepted != 1 {
				t.Errorf("%d packets found nobody, and servers got %d connections, want 0 and 1", n, accepted)
			}
		})
	}
}
