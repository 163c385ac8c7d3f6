package test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"weir.io/weir/lab/netlab"
)

// A client that reuses a port has its new connection on the pod that got the SYN, even if packets
// then come to the previous pod's host again, which remembers how the old connection ended.
func TestPodsPortUsedAgain(t *testing.T) {
	t.Parallel()
	chance, l := newPodMove(t)
	endings := []struct {
		name string
		end  func(*testing.T, *session)
	}{
		{"the pod ends it first", func(t *testing.T, s *session) {
			if _, err := fmt.Fprintln(s, bye); err != nil {
				t.Fatal(err)
			}
			if rest, err := io.ReadAll(s.lines); err != nil || len(rest) > 0 {
				t.Fatalf("behind its last line the pod sends %q: %v", rest, err)
			}
		}},
		{"the client resets it", func(t *testing.T, s *session) {
			if err := s.Conn.(*net.TCPConn).SetLinger(0); err != nil {
				t.Fatal(err)
			}
		}},
	}
	port := func(ending, way int) int { return 20100 + 10*ending + way } // the kernel assigns none of these by itself
	for i, ending := range endings {
		for j, w := range gueWays {
			s, err := chance.connectFrom(t, w, port(i, j))
			if err != nil {
				t.Fatal(err)
			}
			if got := s.ask(t); got != l.pods[0].Name {
				t.Fatalf("%s has a connection while only %s is active", got, l.pods[0].Name)
			}
			ending.end(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.move(1)
	again := map[string][]*session{}
	for i, ending := range endings {
		for j, w := range gueWays {
			var s *session
			waitFor(t, "have the port again", func() bool {
				var err error
				s, err = chance.connectFrom(t, w, port(i, j))
				if err != nil && !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
					t.Fatal(err)
				}
				return err == nil
			})
			l.wantMoved(t, s)
			again[ending.name] = append(again[ending.name], s)
		}
	}
	l.move(0)
	for name, sessions := range again {
		t.Run(name, func(t *testing.T) {
			for _, s := range sessions {
				l.wantMoved(t, s)
			}
		})
	}
	if n := l.count(t, "passed_on"); n == 0 {
		t.Error("no packet was sent on to another host, so this shows nothing")
	}
}

// A SYN to a pod whose answer is lost is sent again, after a change to another pod. That pod has
// the connection, even if packets come to the first one's host again.
func TestPodsOpenedTwice(t *testing.T) {
	t.Parallel()
	chance, l := newPodMove(t)
	for _, family := range []string{"-4", "-6"} { // drops the pod's packets
		on(t, l.pods[0], "ip", family, "rule", "add", "pref", "1", "iif", "lo", "blackhole")
	}
	opened := make(chan error)
	sessions := make([]*session, len(gueWays))
	for i, w := range gueWays {
		go func() {
			var err error
			sessions[i], err = chance.connect(t, w)
			opened <- err
		}()
	}
	waitFor(t, "have a SYN of each", func() bool { return l.count(t, "decap_pod") >= uint64(len(gueWays)) })
	l.move(1)
	for range gueWays {
		if err := <-opened; err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range sessions {
		l.wantMoved(t, s)
	}
	l.move(0)
	for _, s := range sessions {
		l.wantMoved(t, s)
	}
	if n := l.count(t, "passed_on"); n == 0 {
		t.Error("no packet was sent on to another host, so this shows nothing")
	}
}

// bye is the line at which a pod ends a connection.
const bye = "bye"

// newPodMove starts a lab of two pods on two nodes. The first pod is active.
func newPodMove(t *testing.T) (*chanceLab, *podLab) {
	t.Helper()
	l := newPodLab(t, 0, 1, 1)
	for i, pod := range l.pods {
		serveUntilBye(t, pod, podPort(l.numbers[i], linesPort))
	}
	l.states = []string{"active", "draining"}
	l.serve(l.services("tcp", linesPort)...)
	return &chanceLab{lab: l.lab}, l
}

// move makes new connections go to one of the pods. The other one may still have some.
func (l *podLab) move(pod int) {
	l.t.Helper()
	l.states = []string{"draining", "draining"}
	l.states[pod] = "active"
	l.running.edit(configText("eth0", "", l.services("tcp", linesPort)...))
	l.running.ready()
}

// wantMoved fails unless a connection works and belongs to the second pod.
func (l *podLab) wantMoved(t *testing.T, s *session) {
	t.Helper()
	for range 2 {
		if got, err := s.tryAsk(); err != nil || got != l.pods[1].Name {
			t.Fatalf("%s: a connection that was opened to %s is answered by %q: %v", s.way, l.pods[1].Name, got, err)
		}
	}
}

// serveUntilBye answers each line with the host's name.
func serveUntilBye(t *testing.T, h *netlab.Host, port uint16) {
	t.Helper()
	serveTCP(t, h, fmt.Sprintf(":%d", port), func(conn net.Conn) {
		answerLines(conn, func(line string) string {
			if line == bye {
				return ""
			}
			return h.Name
		})
	})
}
