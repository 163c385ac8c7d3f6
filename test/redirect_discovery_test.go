package test

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// Directors find out to which backends connections can be handed over. A backend whose agent goes
// away gets them by its service's fallback, from the next SYN on and without a lost SYN, and they
// are handed over again when its agent answers again. Open connections go on. The agent's process
// does not matter: its programs answer.
func TestRedirectDiscovery(t *testing.T) {
	t.Parallel()
	// The server at the backend's own address answers all the time.
	const often = "{kind: tcp, to: address, interval: 100ms}"
	lone := redirectService{number: 1, port: linesPort, fallback: "l2dsr", health: often, backends: []backend{{number: 3}}}
	others := redirectService{number: 2, port: 80, fallback: "gue", health: "{kind: none}", backends: everyBackend(2)}
	l := newRedirectLab(t, lone, others)
	serveLines(t, l.backends[2], "backend3")
	var all []*askedConnection
	goOn := func(when string) {
		t.Helper()
		for _, c := range all {
			c.ask(t, when)
		}
	}
	dial := func(when string) {
		t.Helper()
		for _, six := range []bool{false, true} {
			c := l.dialAsked(t, l.client, lone.at(six), "backend3")
			c.ask(t, when)
			all = append(all, c)
		}
	}
	agent := l.agents["backend3"]
	l.bypasses(t, 2, func() { dial("redirected") })

	agent.end(syscall.SIGKILL)
	killed := time.Now()
	l.daemon.waitFor("probe whom it hands connections over to", func() bool {
		return !slices.ContainsFunc(l.daemon.backends(), func(b api.Backend) bool { return !b.Redirect.Probed.After(killed) })
	})
	l.waitRedirects("")
	l.bypasses(t, 2, func() { dial("redirected, to a backend whose agent has no process") })

	on(t, agent.host, weir, "detach", "--bpffs", agent.bpffs)
	for _, six := range []bool{false, true} {
		agent.host.Address("lo", netip.PrefixFrom(redirectVIP(1, six), redirectVIP(1, six).BitLen()).String())
	}
	l.waitRedirects("backend3")
	for _, b := range l.daemon.backends() {
		if b.Name == "backend3" && (b.Redirect.Reason != "unechoed" || b.Mode != model.L2DSR || b.Health.State != model.HealthUp) {
			t.Errorf("backend3 is %+v, in mode %v and health %+v: want it up, and unechoed", *b.Redirect, b.Mode, *b.Health)
		}
	}
	if out := on(t, l.director, weir, "backends", "-o", "wide", "--socket", l.daemon.socket); strings.Count(out, "no:unechoed") != 2 {
		t.Errorf("weir backends does not say that backend3 answers without the option:\n%s", out)
	}
	goOn("its backend's agent is gone")
	again, answered := l.event("client", "again"), l.event("client", "not_taken")
	handed, _ := l.passing()
	dial("as the service falls back")
	if now, _ := l.passing(); now != handed {
		t.Errorf("%d connections were handed over to a backend without an agent", now-handed)
	}
	if a, n := l.event("client", "again")-again, l.event("client", "not_taken")-answered; a != 0 || n != 2 {
		t.Errorf("of 2 connections %d SYNs were sent again and %d asked for nothing: want none, and both", a, n)
	}

	agent.start()
	l.waitRedirects("")
	goOn("the agent is back")
	l.bypasses(t, 2, func() { dial("redirected again") })
	goOn("in the end")
	for _, says := range []string{"backend cannot be redirected to: its connections fall back", "backend can be redirected to again"} {
		if n := strings.Count(l.daemon.logged(), says); n < 2 {
			t.Errorf("the log says %d times %q, want it once for each VIP:\n%s", n, says, l.daemon.logged())
		}
	}
}

// askedConnection is a connection over which a test asks which backend answers.
type askedConnection struct {
	net.Conn
	answers *bufio.Reader
	backend string
}

func (l *redirectLab) dialAsked(t *testing.T, from *netlab.Host, to, backend string) *askedConnection {
	t.Helper()
	conn, err := from.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &askedConnection{conn, bufio.NewReader(conn), backend}
}

func (c *askedConnection) ask(t *testing.T, when string) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(c, "who"); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	if line, err := c.answers.ReadString('\n'); err != nil || strings.TrimSpace(line) != c.backend {
		t.Fatalf("%s: %q answers (%v), want %s", when, line, err, c.backend)
	}
}
