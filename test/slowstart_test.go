package test

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"weir.io/weir/lab/etcdlab"
	"weir.io/weir/lab/netlab"
)

// A backend that was down gets its share step by step, and no request fails meanwhile.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2, backend3
func TestSlowStart(t *testing.T) {
	t.Parallel()
	w := way{mode: "gue"}
	l := newLab(t, size{backends: 3})
	var pages []string
	for _, b := range l.backends {
		pages = append(pages, filepath.Join(startNginx(t, b), "name"))
	}
	director := l.start(w.service("tcp", "80", everyBackend(3)) +
		"  health: {kind: http, http: {path: /name}, interval: 50ms, fall: 2, slow-start: 4s}\n")
	director.waitHealth("up", "up", "up")
	// share is backend1's share of the slots, in percent.
	share := func() int {
		owned, all := 0, 0
		for i, b := range director.backends() {
			if all += b.Slots; i == 0 {
				owned = b.Slots
			}
		}
		return 100 * owned / all
	}
	director.waitFor("give backend1 a third", func() bool { got := share(); return 32 <= got && got <= 34 })
	rename(t, pages[0], pages[0]+".off")
	director.waitFor("take backend1's share", func() bool { return share() < 8 })
	wantOnly(t, l, w, "backend2", "backend3")

	var asking sync.WaitGroup
	var over atomic.Bool
	asked, failed := 0, 0
	asking.Go(func() {
		for ; !over.Load(); asked++ {
			if _, err := tryOn(t, l.client, "curl", "--silent", "--fail", "--globoff", "--max-time", "10", w.url("name")); err != nil {
				failed++
			}
		}
	})
	rename(t, pages[0]+".off", pages[0])
	director.waitHealth("up", "up", "up")
	director.waitFor("give it its whole share", func() bool { return share() >= 32 })
	over.Store(true)
	asking.Wait()
	if asked == 0 || failed > 0 {
		t.Errorf("%d of %d requests failed while backend1 started", failed, asked)
	}
	last := -1
	for step := 1; step < 8; step++ {
		at := strings.LastIndex(director.logged(), fmt.Sprintf("%s:0 at %d/8", lanAddress(backendHost, false), step))
		if at <= last {
			t.Fatalf("step %d does not follow the one before it in the log:\n%s", step, director.logged())
		}
		last = at
	}
}

// Directors of a group give one share to a backend that was down, step by step, by what most of
// them find. Connections that were open before stay where they are, whichever director gets their
// packets.
//
//	client --- router --- switch --- director, director2
//	                             --- backend1, backend2, backend3
//	                             --- store (an etcd)
func TestGroupStartsSlowly(t *testing.T) {
	t.Parallel()
	w := way{mode: "gue"}
	l := newGroupLab(t)
	const port = 81 // of the checked listener
	set := w.service("tcp", fmt.Sprint(linesPort), everyBackend(3)) +
		fmt.Sprintf("  health: {kind: tcp, port: %d, interval: 50ms, fall: 2, slow-start: 4s}\n", port)
	first := l.healthy(t, 0, port)
	l.healthy(t, 1, port)
	l.healthy(t, 2, port)
	l.apply(t, set)
	for _, d := range l.directors {
		d.waitHealth("up", "up", "up")
	}
	var sessions []*session
	for range 40 {
		sessions = append(sessions, l.open(t, w))
	}
	l.stay(t, sessions, "at first")
	l.waitShare(t, 33)
	before := l.written()
	first.Close()
	waitFor(t, "both directors to take backend1's share", func() bool { got := l.share(); return max(got[0], got[1]) < 8 })
	l.stay(t, sessions, "while backend1 is down")
	l.healthy(t, 0, port)
	waitFor(t, "backend1 to be on its way", func() bool { return l.share()[1] > 10 })
	l.stay(t, sessions, "on its way")
	waitFor(t, "both directors to give backend1 its share again", func() bool { return l.share() == [2]int{33, 33} })
	l.stay(t, sessions, "in the end")
	if n := l.written() - before; n > 9 {
		t.Errorf("the directors have written %d times what are nine changes", n)
	}
}

// written is how often the directors have changed the shares of backends that start slowly.
func (l *groupLab) written() (n int) {
	for _, d := range l.directors {
		n += strings.Count(d.logged(), "backends that start slowly have other shares")
	}
	return n
}

// groupLab is two directors that share an etcd, and agents that report to it.
type groupLab struct {
	*chanceLab
	directors [2]*daemon
}

func newGroupLab(t *testing.T) *groupLab {
	t.Helper()
	return newGroupLabIn(t, "gue", "")
}

// newGroupLabIn returns a lab with backends that are ready for a mode, and directors with more
// keys.
func newGroupLabIn(t *testing.T, mode, more string) *groupLab {
	t.Helper()
	l := &groupLab{chanceLab: &chanceLab{lab: newLab(t, size{backends: 3})}}
	second, _ := l.secondDirector()
	_, store := l.startStore(etcdlab.Options{Members: 1})
	directors := fmt.Sprintf("directors: [%s, %s]\n", lanAddress(directorHost, false), lanAddress(otherDirector, false))
	for i, b := range l.backends {
		text := "agent:\n  interfaces: [eth0]\n" + store + directors + "services:\n"
		for _, protocol := range []string{"tcp", "udp"} {
			text += (way{mode: mode}).service(protocol, fmt.Sprint(linesPort), everyBackend(3))
		}
		l.agents = append(l.agents, startDaemon(t, b, "agent", text))
		l.servers = append(l.servers, serveLines(t, b, fmt.Sprintf("backend%d", i+1)))
	}
	for i, h := range []*netlab.Host{l.director, second} {
		l.directors[i] = startDaemon(t, h, "run", "director:\n  interfaces: [eth0]\n"+more+store+"notice: 500ms\n"+directors+"services: []\n")
	}
	return l
}

// apply gives the group these services.
func (l *groupLab) apply(t *testing.T, services ...string) {
	t.Helper()
	l.directors[0].apply(services...)
	for _, d := range l.directors {
		d.waitFor("forward the set", func() bool {
			now, err := d.services()
			return err == nil && len(now) == len(services)
		})
	}
}

// by routes clients' packets to one of the directors.
func (l *groupLab) by(director int) {
	l.router.Route("192.0.2.0/24", lanAddress(directorHost+director, false).String())
}

// healthy makes a backend answer checks at a port.
func (l *groupLab) healthy(t *testing.T, backend int, port uint16) net.Listener {
	t.Helper()
	// Forty probes a second fill the queue of a listener that does not accept, sooner than a test
	// may end.
	return serveTCP(t, l.backends[backend], netip.AddrPortFrom(lanAddress(backendHost+backend, false), port).String(), func(net.Conn) {})
}

// share is backend1's share of the slots at each director, in percent.
func (l *groupLab) share() (all [2]int) {
	for i, d := range l.directors {
		slots, backends := 0, d.backends()
		for _, b := range backends {
			slots += b.Slots
		}
		if slots > 0 {
			all[i] = (100*backends[0].Slots + slots/2) / slots
		}
	}
	return all
}

// stay checks that connections are where they were opened, by each director.
func (l *groupLab) stay(t *testing.T, sessions []*session, when string) {
	t.Helper()
	for i := range l.directors {
		l.by(i)
		for _, s := range sessions {
			if got := s.ask(t); got != s.backend {
				t.Fatalf("%s %s has a connection of %s", when, got, s.backend)
			}
		}
	}
}
