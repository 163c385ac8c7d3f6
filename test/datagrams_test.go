package test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// UDP flows in gue stay where they are, whatever happens and whichever director gets their
// datagrams: while backends drain and come back, while only one director does not see a backend,
// when a director is killed and the backends change at once. Every answer must come from the
// backend that gave the first.
//
//	client --- router --- switch --- director, director2
//	                             --- backend1, backend2, backend3
func TestDatagramsOutliveChanges(t *testing.T) {
	t.Parallel()
	l := newDatagramLab(t, "")
	all := everyBackend(3)
	l.direct(t, all...)
	l.open(t, 12)
	l.startOther(t, all)
	l.ask(t, "a second director", "")

	l.change(t, backend{number: 1, state: "draining"}, backend{number: 2}, backend{number: 3})
	l.ask(t, "a backend drains", "")
	l.open(t, 6)
	l.ask(t, "flows begin meanwhile", "")

	l.change(t, backend{number: 1}, backend{number: 2, state: "draining"}, backend{number: 3, state: "draining"})
	l.ask(t, "it is back, others drain", "")
	l.change(t, all...)
	l.ask(t, "all are back", "")

	seen := l.blind(t, 2)
	l.via(t, directorHost)
	l.askAll(t, "one director does not see a backend")
	l.open(t, 6)
	l.ask(t, "flows begin while one director does not see a backend", "passed_on")
	seen()
	l.ask(t, "it sees it again", "")

	l.change(t, backend{number: 1}, backend{number: 2}, backend{number: 3, state: "draining"})
	l.via(t, otherDirector)
	l.running.end(syscall.SIGKILL)
	on(t, l.director, weir, "detach", "--bpffs", l.director.BPFFS())
	l.second.edit(l.text(otherDirector, backend{number: 1, state: "draining"}, backend{number: 2}, backend{number: 3}))
	l.second.ready()
	l.askAll(t, "a director was killed, and the backends changed at once")
	for _, never := range []string{"drop_row_malformed", "drop_not_peer", "decap_last_resort"} {
		if n := l.count(t, never); n > 0 {
			t.Errorf("the agents count %d packets as %s", n, never)
		}
	}
}

// Without the agents' memory flows go elsewhere: a director knows nothing of the flows that another
// one placed while the other did not see a backend.
func TestDatagramsStrayWithoutMemory(t *testing.T) {
	t.Parallel()
	l := newDatagramLab(t, "  udp-flows: 0\n")
	all := everyBackend(3)
	l.direct(t, all...)
	l.startOther(t, all)
	l.blind(t, 2)
	l.open(t, 12)
	l.via(t, otherDirector)
	moved := 0
	for _, f := range l.flows {
		if got, err := f.tryAsk(); err == nil && got != f.backend {
			moved++
		}
	}
	if moved == 0 {
		t.Error("no flow has moved, although nobody remembers any")
	}
}

// datagramLab is a lab of UDP servers that answer with their host's name, and a second
// director beside the first.
type datagramLab struct {
	*chanceLab
	second *daemon
	flows  []*datagrams
}

func newDatagramLab(t *testing.T, key string) *datagramLab {
	t.Helper()
	l := &datagramLab{chanceLab: newChanceLabOf(t, "udp", "1", key)}
	for i, b := range l.backends {
		for _, w := range gueWays {
			serveUDP(t, b, netip.AddrPortFrom(w.vip(), linesPort), func(datagram []byte) []byte {
				return fmt.Appendf(nil, "%s backend%d", datagram, i+1)
			})
		}
	}
	return l
}

// startOther starts the second director with what the first has on disk.
func (l *datagramLab) startOther(t *testing.T, backends []backend) {
	t.Helper()
	if err := os.CopyFS(filepath.Join(l.other.Dir(), "state"), os.DirFS(filepath.Join(l.director.Dir(), "state"))); err != nil {
		t.Fatal(err)
	}
	l.second = startDaemon(t, l.other, "run", l.text(otherDirector, backends...))
}

// via lets all flows' datagrams come to a director.
func (l *datagramLab) via(t *testing.T, director int) {
	t.Helper()
	l.router.Route("192.0.2.0/24", lanAddress(director, false).String())
	l.router.Route("2001:db8::/64", lanAddress(director, true).String())
}

// change reconfigures both directors, the second one while flows come to the first.
func (l *datagramLab) change(t *testing.T, backends ...backend) {
	t.Helper()
	l.running.edit(l.text(directorHost, backends...))
	l.running.ready()
	l.second.edit(l.text(otherDirector, backends...))
	l.second.ready()
}

// blind makes the first director lose sight of a backend, until the function that it
// returns is called.
func (l *datagramLab) blind(t *testing.T, number int) (sees func()) {
	t.Helper()
	b4, b6 := lanAddress(backendHost+number-1, false).String(), lanAddress(backendHost+number-1, true).String()
	on(t, l.director, "nft", fmt.Sprintf(
		"table arp blind { chain input { type filter hook input priority 0; arp saddr ip %s drop; }; };"+
			"table ip6 blind { chain input { type filter hook input priority 0; ip6 saddr %s icmpv6 type nd-neighbor-advert drop; }; };", b4, b6))
	for _, address := range []string{b4, b6} {
		on(t, l.director, "ip", "neigh", "replace", address, "dev", "eth0", "nud", "failed")
	}
	down := func() (n int) {
		services, err := l.running.services()
		if err != nil {
			return -1
		}
		for _, s := range services {
			for _, b := range s.Backends {
				if b.State == model.Down {
					n++
				}
			}
		}
		return n
	}
	l.running.waitFor("lose sight of a backend", func() bool { return down() == len(gueWays) })
	return func() {
		on(t, l.director, "nft", "delete table arp blind; delete table ip6 blind")
		on(t, l.director, "ip", "neigh", "flush", "to", b4)
		on(t, l.director, "ip", "-6", "neigh", "flush", "to", b6)
		l.running.waitFor("see it again", func() bool { return down() == 0 })
	}
}

// datagrams is one of the client's flows.
type datagrams struct {
	net.Conn
	way     way
	backend string
	asked   int
}

// open begins this many flows of each way.
func (l *datagramLab) open(t *testing.T, each int) {
	t.Helper()
	for _, w := range gueWays {
		for range each {
			conn, err := l.client.DialContext(t.Context(), "udp", netip.AddrPortFrom(w.vip(), linesPort).String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			f := &datagrams{Conn: conn, way: w}
			if f.backend, err = f.tryAsk(); err != nil {
				t.Fatalf("%s: a flow does not begin: %v", w, err)
			}
			l.flows = append(l.flows, f)
		}
	}
}

// ask asks on all flows through each director, and checks that a reason was counted.
func (l *datagramLab) ask(t *testing.T, what, counted string) {
	t.Helper()
	before := l.count(t, counted)
	for _, director := range []int{otherDirector, directorHost} {
		l.via(t, director)
		l.askAll(t, fmt.Sprintf("%s, by director %d", what, director))
	}
	if counted != "" && l.count(t, counted) == before {
		t.Errorf("%s: the agents count nothing as %s", what, counted)
	}
}

func (l *datagramLab) askAll(t *testing.T, what string) {
	t.Helper()
	broken := 0
	for _, f := range l.flows {
		if got, err := f.tryAsk(); err != nil || got != f.backend {
			t.Errorf("%s: %s: %q answers on the flow of %s from %s: %v", what, f.way, got, f.backend, f.LocalAddr(), err)
			broken++
		}
	}
	if broken > 0 {
		t.Fatalf("%s: %d of %d flows are broken", what, broken, len(l.flows))
	}
}

// tryAsk sends a datagram until it is answered: datagrams may be lost.
func (f *datagrams) tryAsk() (string, error) {
	f.asked++
	question := fmt.Sprint(f.asked)
	buffer := make([]byte, 2048)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if _, err := f.Write([]byte(question)); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			return "", err
		}
		_ = f.SetReadDeadline(time.Now().Add(time.Second))
		for {
			n, err := f.Read(buffer)
			if err != nil {
				break
			}
			// An answer to an earlier question that was sent twice names the backend, too.
			if _, name, ok := strings.Cut(string(buffer[:n]), " "); ok && (name != f.backend && f.backend != "" || strings.HasPrefix(string(buffer[:n]), question+" ")) {
				return name, nil
			}
		}
	}
	return "", os.ErrDeadlineExceeded
}
