package test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// checkedPort is where backends of these tests answer checks: their servers go on when the checks fail.
const checkedPort = 8080

// tieredService is a service whose backend3 is in tier 1, and whose checks go to another port than its clients.
func tieredService(w way) string {
	text := w.service("tcp", fmt.Sprint(linesPort), everyBackend(3))
	text = strings.Replace(text, fmt.Sprintf("address: \"%s\"}", w.address(3)), fmt.Sprintf("address: \"%s\", tier: 1}", w.address(3)), 1)
	return text + fmt.Sprintf("  health: {kind: http, port: %d, to: address, interval: 100ms, fall: 2, rise: 1}\n", checkedPort)
}

// serveChecks answers checks on a host, well or ill.
func serveChecks(t *testing.T, h *netlab.Host) (ill *atomic.Bool) {
	t.Helper()
	listener, err := h.Listen("tcp", fmt.Sprint(":", checkedPort))
	if err != nil {
		t.Fatal(err)
	}
	ill = &atomic.Bool{}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if ill.Load() {
			http.Error(w, "sorry", http.StatusServiceUnavailable)
		}
	})}
	t.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(listener) }()
	return ill
}

// waitTier waits until a tier of the director's one service gets new connections.
func (d *daemon) waitTier(tier uint8) {
	d.t.Helper()
	d.waitFor(fmt.Sprint("use tier ", tier), func() bool {
		services, err := d.services()
		return err == nil && len(services) == 1 && services[0].Tiers != nil && services[0].Tiers.Active == tier
	})
}

// tells waits until weir events has told something that often.
func (d *daemon) tells(t *testing.T, what string, times int) {
	t.Helper()
	d.waitFor("tell of "+what, func() bool {
		return strings.Count(on(t, d.host, weir, "events", "--socket", d.socket), "  "+what) == times
	})
}

// places opens connections and wants them on these backends.
func (l *chanceLab) places(t *testing.T, w way, n int, backends ...string) (opened []*session) {
	t.Helper()
	for range n {
		s := l.open(t, w)
		if !strings.Contains(strings.Join(backends, " "), s.backend) {
			t.Fatalf("%s has a new connection, want one of %v", s.backend, backends)
		}
		opened = append(opened, s)
	}
	return opened
}

// stay wants connections where they were opened.
func stay(t *testing.T, sessions []*session, when string) {
	t.Helper()
	for _, s := range sessions {
		if got := s.ask(t); got != s.backend {
			t.Fatalf("%s: %s answers on a connection of %s", when, got, s.backend)
		}
	}
}

// Tier 1 gets new connections while the checks of tier 0 fail, and gives them back. Connections of both tiers go on: in gue
// agents find them, elsewhere the director keeps those of backends that it suspects, and remembers the others.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2; backend3 in tier 1
func TestTiers(t *testing.T) {
	t.Parallel()
	for _, w := range []way{{mode: "l2dsr"}, {mode: "gue"}, {mode: "nat"}, {mode: "nat", snat: true}} {
		t.Run(w.String(), func(t *testing.T) {
			t.Parallel()
			l := &chanceLab{lab: newLab(t, size{backends: 3}), protocol: "tcp"}
			var ill []*atomic.Bool
			for i, b := range l.backends {
				serveLines(t, b, fmt.Sprintf("backend%d", i+1))
				ill = append(ill, serveChecks(t, b))
				startDaemon(t, b, "agent", configText("", "eth0", tieredService(w)))
			}
			l.running = startDaemon(t, l.director, "run", "suspect: 1m\n"+configText("eth0", "", tieredService(w)))
			l.running.waitHealth("up", "up", "up")
			l.running.waitTier(0)
			first := l.places(t, w, 30, "backend1", "backend2")
			for turn := range 2 {
				ill[0].Store(true)
				l.running.waitFor("leave backend1", func() bool { return !l.running.backends()[0].State.Alive() })
				l.running.waitTier(0)
				l.places(t, w, 10, "backend2")
				ill[1].Store(true)
				l.running.waitTier(1)
				second := l.places(t, w, 30, "backend3")
				stay(t, first, "tier 1 is active")
				stay(t, second, "tier 1 is active")
				l.running.waitFor("say so", func() bool { return l.running.hasProblem(model.ProblemService, "tier 1 gets new connections") })
				l.running.tells(t, "tier 1 of service", turn+1)
				if text := on(t, l.director, weir, "services", "--socket", l.running.socket); !strings.Contains(text, "1,above:0/2") {
					t.Errorf("weir services does not say which tier is active:\n%s", text)
				}
				ill[0].Store(false)
				l.running.waitTier(0)
				l.running.waitFor("use backend1", func() bool { return l.running.backends()[0].State.Alive() })
				first = append(first, l.places(t, w, 10, "backend1")...)
				ill[1].Store(false)
				l.running.waitFor("use backend2", func() bool { return l.running.backends()[1].State.Alive() })
				l.places(t, w, 20, "backend1", "backend2")
				stay(t, first, fmt.Sprint("tier 0 is back, turn ", turn))
				stay(t, second, fmt.Sprint("tier 0 is back, turn ", turn))
				l.running.waitFor("say that it is over", func() bool { return !l.running.hasProblem(model.ProblemService, "tier 1 gets new connections") })
				l.running.tells(t, "tier 0 of service", turn+1)
			}
		})
	}
}

// Two directors use different tiers, because one of them does not reach the backends of tier 0 with its checks. Connections
// stay whichever director their packets come by.
//
//	client --- router --- switch --- director, director2
//	                             --- backend1, backend2; backend3 in tier 1
func TestTiersOfTwoDirectors(t *testing.T) {
	t.Parallel()
	w := way{mode: "gue"}
	l := newChanceLab(t, "1", "")
	for _, b := range l.backends {
		serveChecks(t, b)
	}
	l.running = startDaemon(t, l.director, "run", configText("eth0", "", tieredService(w)))
	for _, rule := range []string{"add table inet test", "add chain inet test out { type filter hook output priority 0 ; }",
		fmt.Sprintf("add rule inet test out ip daddr { %s, %s } tcp dport %d drop", w.address(1), w.address(2), checkedPort)} {
		on(t, l.other, "nft", rule)
	}
	other := startDaemon(t, l.other, "run", strings.NewReplacer(lanAddress(directorHost, false).String()+",", lanAddress(otherDirector, false).String()+",",
		lanAddress(directorHost, true).String()+"\"", lanAddress(otherDirector, true).String()+"\"").Replace(configText("eth0", "", tieredService(w))))
	l.running.waitTier(0)
	other.waitTier(1)
	by := func(director int) { l.router.Route("192.0.2.0/24", lanAddress(director, false).String()) }
	var sessions []*session
	for range 3 {
		by(directorHost)
		sessions = append(sessions, l.places(t, w, 20, "backend1", "backend2")...)
		stay(t, sessions, "by the director that uses tier 0")
		by(otherDirector)
		sessions = append(sessions, l.places(t, w, 20, "backend3")...)
		stay(t, sessions, "by the director that uses tier 1")
	}
}
