package test

import (
	"fmt"
	"strings"
	"testing"
)

// samePort is a port of the client with connections to several VIPs, below those that the kernel
// chooses.
const samePort = 20005

// Services share backends, and each host knows to which VIP a connection was opened. Two
// connections from one port of a client might clash at a backend: the second one goes by its
// service's fallback.
func TestSeveralVIPsOfABackend(t *testing.T) {
	t.Parallel()
	one := redirectService{number: 1, port: 80, fallback: "gue", backends: everyBackend(2)}
	two := redirectService{number: 2, port: 80, fallback: "l2dsr", backends: everyBackend(2)}
	l := newRedirectLab(t, one, two)
	for _, b := range l.backends[:2] {
		startNginx(t, b)
	}
	// A port that has called the other VIP might clash: each step has ports of its own.
	step := 0
	otherPorts := func() {
		step++
		l.client.Sysctl("net.ipv4.ip_local_port_range", fmt.Sprintf("%d %d", 30000+1000*step, 30999+1000*step))
	}
	bothFamilies(t, func(t *testing.T, six bool) {
		for _, s := range []redirectService{one, two} {
			otherPorts()
			l.bypasses(t, 10, func() {
				for range 10 {
					on(t, l.client, "curl", "-sS", "--fail", "--max-time", "10", "http://"+s.at(six)+"/name")
				}
			})
		}
		l.bypasses(t, 0, func() {
			for _, s := range []redirectService{one, two} {
				otherPorts()
				if out := on(t, l.client, "wrk", "-t", "1", "-c", "10", "-d", "1s", "http://"+s.at(six)+"/name"); strings.Contains(out, "Socket errors") || strings.Contains(out, "Non-2xx") {
					t.Errorf("wrk says:\n%s", out)
				}
			}
		})
		clashes := l.event("client", "may_clash")
		handed, _ := l.passing()
		first := l.dialFrom(t, six, samePort, one)
		answers(t, first, "keep-alive")
		second := l.dialFrom(t, six, samePort, two)
		answers(t, second, "keep-alive")
		answers(t, first, "close")
		if now, _ := l.passing(); now-handed != 1 {
			t.Errorf("of two connections by one port %d were handed over, want one", now-handed)
		}
		if n := l.event("client", "may_clash") - clashes; n != 1 {
			t.Errorf("%d connections fell back because they might clash, want one", n)
		}
		_ = second.Close()
	})
	if n := l.event("client", "again"); n != 0 {
		t.Errorf("%d SYNs were sent again", n)
	}
	for _, b := range l.backends[:2] {
		if n := l.event(b.Name, "misnamed"); n != 0 {
			t.Errorf("%s has not known %d VIPs", b.Name, n)
		}
	}
}
