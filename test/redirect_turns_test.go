package test

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"slices"
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

// Connections that are redirected by p2c go to the better of two of all backends: who has most
// gets none, so nobody has more than one other by more than one.
func TestRedirectByLoad(t *testing.T) {
	const connections, port = 24, 7000
	service := redirectService{number: 1, port: port, fallback: "gue", policy: "p2c", backends: everyBackend(3)}
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
		// What is sent again is counted again, elsewhere maybe; and loads that are halved
		// meanwhile are halves of connections.
		off := 2 * (1 + int(l.event("client", "again")-again))
		counts := []int{opened["backend1"], opened["backend2"], opened["backend3"]}
		slices.Sort(counts)
		if counts[2]-counts[1] > off {
			t.Errorf("%d connections to %s are %v: one has more than any other by more than %d", connections, to, opened, off)
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
