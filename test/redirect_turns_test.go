package test

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"
)

// Connections that are redirected take turns, and nobody remembers which: what is sent again
// without the option goes where its hash says.
func TestRedirectInTurn(t *testing.T) {
	const connections, port = 9, 7000
	service := redirectService{number: 1, port: port, fallback: "gue", policy: "round-robin", backends: everyBackend(3)}
	l := newRedirectLab(t, service)
	for _, b := range l.backends {
		l.answerAt(b, netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	}
	l.daemon.waitFor("place connections on three backends", func() bool {
		services, err := l.daemon.services()
		return err == nil && len(services) == 2 && activeIn(services[0]) == 3 && activeIn(services[1]) == 3
	})
	f := &flowsUnderTest{lab: l.lab}
	for _, six := range []bool{false, true} {
		to := netip.AddrPortFrom(redirectVIP(service.number, six), port)
		handed, again := l.reason("forward_redirect"), l.event("client", "again")
		opened := map[string]int{}
		for range connections {
			flow := f.connect(l, to)
			backend, err := flow.ask()
			l.must(err)
			flow.backend = backend
			opened[backend]++
		}
		if n := l.reason("forward_redirect") - handed; n < connections {
			t.Errorf("%d SYNs of %d connections were handed over", n, connections)
		}
		// Of a machine that takes a second for a SYN-ACK: what is sent again goes by the ring.
		off := int(l.event("client", "again") - again)
		for _, b := range l.backends {
			if n := opened[b.Name]; n < connections/3-off || n > connections/3+off {
				t.Errorf("%d connections to %s are %v, want %d each, give or take %d", connections, to, opened, connections/3, off)
				break
			}
		}
	}
	f.goOn("in the end")
}

// connect opens a connection of the client's.
func (f *flowsUnderTest) connect(l *redirectLab, to netip.AddrPort) *flowUnderTest {
	f.t.Helper()
	flow := &flowUnderTest{name: fmt.Sprint("to ", to)}
	f.must(l.client.Do(func() (err error) {
		flow.Conn, err = net.DialTimeout("tcp", to.String(), 10*time.Second)
		return err
	}))
	f.t.Cleanup(func() { flow.Close() })
	flow.lines = bufio.NewReader(flow)
	f.flows = append(f.flows, flow)
	return flow
}
