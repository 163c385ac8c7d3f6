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

// turnsTest opens connections to a service of three backends, by IPv4 and by IPv6, and judges how
// many each backend got. Each must be handed over, and stays where it is.
type turnsTest struct {
	policy      string
	connections int
	// again is how many SYNs were sent a second time: these go where their hash says, and a policy
	// that counts counts them twice.
	judge func(t *testing.T, to netip.AddrPort, opened map[string]int, again int)
}

func (c turnsTest) run(t *testing.T) {
	const port = 7000
	service := redirectService{number: 1, port: port, fallback: "gue", policy: c.policy, backends: everyBackend(3)}
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
		handed, again := l.daemon.reason("forward_redirect"), l.event("client", "again")
		opened := map[string]int{}
		for range c.connections {
			flow := f.connect(l, to)
			backend, err := flow.ask()
			l.must(err)
			flow.backend = backend
			opened[backend]++
		}
		if n := l.daemon.reason("forward_redirect") - handed; n < uint64(c.connections) {
			t.Errorf("%d SYNs of %d connections were handed over", n, c.connections)
		}
		c.judge(t, to, opened, int(l.event("client", "again")-again))
	}
	f.goOn("in the end")
}

// Redirected connections take turns, and the director does not remember them: a SYN that is sent
// again without the option goes where its hash says.
func TestRedirectInTurn(t *testing.T) {
	t.Parallel()
	const connections = 9
	turnsTest{"round-robin", connections, func(t *testing.T, to netip.AddrPort, opened map[string]int, again int) {
		// If this machine takes a second for a SYN-ACK, the SYN is sent again and goes by the ring.
		for _, backend := range []string{"backend1", "backend2", "backend3"} {
			if n := opened[backend]; n < connections/3-again || n > connections/3+again {
				t.Errorf("%d connections to %s are %v, want %d each, give or take %d", connections, to, opened, connections/3, again)
				break
			}
		}
	}}.run(t)
}

// Connections that p2c redirects go to the better of two backends: the one with most gets none, so
// none exceeds the second by more than one.
func TestRedirectByLoad(t *testing.T) {
	t.Parallel()
	turnsTest{"p2c", 24, func(t *testing.T, to netip.AddrPort, opened map[string]int, again int) {
		// A SYN that is sent again is counted again, perhaps elsewhere; and loads may be halved
		// meanwhile.
		off := 2 * (1 + again)
		counts := []int{opened["backend1"], opened["backend2"], opened["backend3"]}
		slices.Sort(counts)
		if counts[2]-counts[1] > off {
			t.Errorf("connections to %s are %v: one has more than any other by more than %d", to, opened, off)
		}
	}}.run(t)
}

// connect opens a connection from the client.
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
