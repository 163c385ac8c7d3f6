package test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/lab/netlab"
)

// A director sees only SYNs, and nothing of clients that call a backend at its own address. There
// the backend's agent lets in the clients of the service's source ranges, and the directors, whose
// probes find out that connections can be redirected to it.
//
//	client --- router --- switch --- director
//	                        |    --- backend1
//	                    neighbor
func TestSourceRangesOfRedirected(t *testing.T) {
	t.Parallel()
	service := func(callers ...int) redirectService {
		return redirectService{number: 1, port: linesPort, fallback: "gue", backends: everyBackend(1), callers: callers}
	}
	l := newNarrowLab(t, size{backends: 1}, service())
	serveLines(t, l.backends[0], "backend1")
	l.become(service(memberHost))
	l.daemon.waitFor("have the ranges", func() bool {
		services, err := l.daemon.services()
		return err == nil && len(services) == 2 && len(services[0].SourceRanges) == 1 && len(services[1].SourceRanges) == 1
	})
	for _, six := range []bool{false, true} {
		outside := l.event("backend1", "outside")
		l.agents["backend1"].waitFor("have the ranges", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if conn, err := l.neighbor.DialContext(ctx, "tcp", netip.AddrPortFrom(lanAddress(backendHost, six), linesPort).String()); err == nil {
				conn.Close()
			}
			return l.event("backend1", "outside") > outside
		})
	}
	probed := l.event("backend1", "received")
	l.agents["backend1"].waitFor("let directors probe it", func() bool { return l.event("backend1", "received") > probed+2 })
	open := map[bool]net.Conn{}
	for _, six := range []bool{false, true} {
		own := netip.AddrPortFrom(lanAddress(backendHost, six), linesPort).String()
		l.bypasses(t, 1, func() { open[six] = l.talk(l.client, service().at(six)) })
		l.talk(l.client, own)
		dropped := l.daemon.reason("drop_source_range")
		l.unanswered(l.neighbor, service().at(six), func() bool { return l.daemon.reason("drop_source_range") > dropped })
		outside := l.event("backend1", "outside")
		l.unanswered(l.neighbor, own, func() bool { return l.event("backend1", "outside") > outside })
		other := netip.AddrPortFrom(lanAddress(backendHost, six), memoryPort)
		l.answerAt(l.backends[0], other)
		l.talk(l.neighbor, other.String())
	}
	// The programs keep doing so when the agent ends, and the next agent takes over.
	agent := l.agents["backend1"]
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		agent.end(end)
		own := netip.AddrPortFrom(lanAddress(backendHost, false), linesPort).String()
		l.talk(l.client, own)
		before := 0
		l.unanswered(l.neighbor, own, func() bool { before++; return before > 3 })
		agent.start()
		agent.ready()
		outside := l.event("backend1", "outside")
		l.unanswered(l.neighbor, own, func() bool { return l.event("backend1", "outside") > outside })
		l.talk(l.client, own)
	}
	// Open connections stop, too.
	l.become(service(guestHost))
	for six, conn := range open {
		outside := l.event("backend1", "outside")
		agent.waitFor(fmt.Sprintf("drop what is open, IPv6 %v", six), func() bool {
			_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
			_, err := fmt.Fprintln(conn, "who")
			return l.event("backend1", "outside") > outside || err != nil
		})
		if l.event("backend1", "outside") == outside {
			t.Errorf("IPv6 %v: nothing was dropped of what is open", six)
		}
	}
}

// become gives all daemons another service. Directors probe from the address of the route to the
// backend, which here may be either of theirs.
func (l *redirectLab) become(s redirectService) {
	with := func(text string) string {
		return strings.Replace(text, "\ndirectors: [", fmt.Sprintf("\ndirectors: [%s, \"%s\", ", lanAddress(snatHost, false), lanAddress(snatHost, true)), 1)
	}
	for _, a := range l.agents {
		a.edit(with(configText("", "eth0", s.text())))
	}
	l.daemon.edit(with(configText("eth0", "", s.text())))
}

// talk opens a connection, and gets an answer.
func (l *redirectLab) talk(from *netlab.Host, to string) net.Conn {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	conn, err := from.DialContext(ctx, "tcp", to)
	if err != nil {
		l.t.Fatalf("%s calls %s: %v", from.Name, to, err)
	}
	l.t.Cleanup(func() { conn.Close() })
	l.must(conn.SetDeadline(time.Now().Add(time.Minute)))
	if _, err := fmt.Fprintln(conn, "who"); err != nil {
		l.t.Fatalf("%s asks %s: %v", from.Name, to, err)
	}
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		l.t.Fatalf("%s is answered by %s: %v", from.Name, to, err)
	}
	l.must(conn.SetDeadline(time.Time{}))
	return conn
}

// unanswered tries to open a connection until something has happened; it must not be open by then.
func (l *redirectLab) unanswered(from *netlab.Host, to string, happened func() bool) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.t.Context())
	ended := make(chan error, 1)
	go func() {
		conn, err := from.DialContext(ctx, "tcp", to)
		if err == nil {
			conn.Close()
		}
		ended <- err
	}()
	waitFor(l.t, fmt.Sprintf("%s to be refused by %s", from.Name, to), func() bool { return happened() || len(ended) > 0 })
	cancel()
	if err := <-ended; err == nil {
		l.t.Fatalf("%s is let in to %s", from.Name, to)
	}
}
