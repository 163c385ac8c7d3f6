package test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// loadsLab is a service whose connections are placed by a policy, and by agents' reports.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2
//	                             --- other (its connections come by no director)
type loadsLab struct {
	*chanceLab
	way    way
	policy model.Policy
	other  *netlab.Host
}

func newLoadsLab(t *testing.T, policy model.Policy) *loadsLab {
	t.Helper()
	l := &loadsLab{chanceLab: &chanceLab{lab: newLab(t, size{backends: 2})}, way: way{mode: "ipip"}, policy: policy}
	l.other = l.Host("other")
	l.Link(l.other, l.lan, netlab.LinkOptions{A: lanPrefixes(51)})
	keys := write(t, l.director, "keys", strings.Repeat("5eed", 16)+"\n")
	// A report counts for three intervals: no agent stalls for that long.
	reports := fmt.Sprintf("loads: {key-file: %s, interval: 1s}\n", keys)
	service := l.way.service("tcp", fmt.Sprint(linesPort), everyBackend(2))
	service = strings.Replace(service, "  backends:\n", "  policy: "+policy.String()+"\n  backends:\n", 1)
	for i, b := range l.backends {
		l.agents = append(l.agents, startDaemon(t, b, "agent", reports+configText("", "eth0", service)))
		l.servers = append(l.servers, serveLines(t, b, fmt.Sprintf("backend%d", i+1)))
	}
	l.running = startDaemon(t, l.director, "run", reports+configText("eth0", "", service))
	return l
}

// waitService waits until the director's status of the service meets a condition.
func (l *loadsLab) waitService(what string, is func(s *model.ServiceStatus) bool) {
	l.t.Helper()
	l.running.waitFor(what, func() bool {
		services, err := l.running.services()
		return err == nil && len(services) == 1 && services[0].Loads != nil && is(&services[0])
	})
}

func (l *loadsLab) waitReported() {
	l.t.Helper()
	l.waitService("place connections by the loads of both backends", func(s *model.ServiceStatus) bool {
		return !s.Loads.Degraded && s.Loads.Reported == 2 && s.Policy == l.policy
	})
}

// burden opens connections to the VIP on one backend that the director does not see.
func (l *loadsLab) burden(t *testing.T, backend, connections int) {
	t.Helper()
	l.other.Route(l.way.vip().String()+"/32", lanAddress(backendHost+backend-1, false).String())
	for range connections {
		conn, err := l.other.DialContext(t.Context(), "tcp", netip.AddrPortFrom(l.way.vip(), linesPort).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
}

// place opens connections by the director, and returns how many each backend got. No server needs
// to answer on them.
func (l *loadsLab) place(t *testing.T, connections int) map[string]int {
	t.Helper()
	before := l.opened()
	for range connections {
		conn, err := l.connect(t, l.way)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn // stays open until the test ends
	}
	got := l.opened()
	for name, n := range before {
		got[name] -= n
	}
	return got
}

// opened is how many connections the director has opened on each backend.
func (l *loadsLab) opened() map[string]int {
	l.t.Helper()
	services, err := l.running.services()
	if err != nil {
		l.t.Fatal(err)
	}
	all := map[string]int{}
	for _, b := range services[0].Backends {
		all[b.Name] = int(b.Opened)
	}
	return all
}

// A backend with many connections, or a long accept queue, from other sources than this director
// gets no new ones while another has less to do. When reports stop, connections are placed in turn,
// and by load again when reports are back. Open connections stay.
func TestReportedLoads(t *testing.T) {
	t.Parallel()
	for _, policy := range []model.Policy{model.LeastConn, model.P2C} {
		t.Run(policy.String(), func(t *testing.T) { reportedLoads(t, policy) })
	}
}

func reportedLoads(t *testing.T, policy model.Policy) {
	l := newLoadsLab(t, policy)
	l.waitReported()
	var sessions []*session
	for range 4 {
		sessions = append(sessions, l.open(t, l.way))
	}
	load := func(s *model.ServiceStatus, backend int) model.BackendLoad {
		if b := s.Backends[backend-1].Load; b != nil {
			return *b
		}
		return model.BackendLoad{}
	}

	const many, few = 60, 10
	l.burden(t, 1, many)
	l.waitService("hear of connections that came by no director", func(s *model.ServiceStatus) bool { return load(s, 1).Connections >= many })
	if got := l.place(t, few); got["backend1"] != 0 || got["backend2"] < few {
		t.Errorf("while backend1 has %d connections more, %d new ones are placed so: %v", many, few, got)
	}

	l.servers[1].busy.Lock()
	const waiting = 3 * many
	l.burden(t, 2, waiting)
	l.waitService("hear of a long accept queue", func(s *model.ServiceStatus) bool { return load(s, 2).Queue >= waiting-1 })
	if got := l.place(t, few); got["backend2"] != 0 || got["backend1"] < few {
		t.Errorf("while %d connections wait for backend2, %d new ones are placed so: %v", waiting, few, got)
	}
	l.servers[1].busy.Unlock()

	for _, a := range l.agents {
		a.end(syscall.SIGTERM)
	}
	l.waitService("place connections without loads", func(s *model.ServiceStatus) bool {
		return s.Loads.Degraded && s.Loads.Stale == 2 && s.Policy == model.RoundRobin
	})
	if table := on(t, l.director, weir, "services", "-o", "wide", "--socket", l.running.socket); !strings.Contains(table, "0/2,degraded") {
		t.Errorf("weir services does not say that the service is degraded:\n%s", table)
	}
	for range few {
		sessions = append(sessions, l.open(t, l.way)) // each is answered
	}
	if got := l.place(t, few); got["backend1"] < few/2 || got["backend2"] < few/2 {
		t.Errorf("without reports %d connections are placed so: %v, want half of them on each", few, got)
	}

	for _, a := range l.agents {
		a.start()
		a.ready()
	}
	l.waitReported()
	l.waitService("hear again who has more", func(s *model.ServiceStatus) bool {
		return load(s, 2).Connections >= waiting && load(s, 1).Connections >= many && load(s, 2).Queue == 0
	})
	if got := l.place(t, few); got["backend2"] != 0 || got["backend1"] < few {
		t.Errorf("after the reports are back %d connections are placed so: %v, want all on backend1", few, got)
	}
	for _, s := range sessions {
		if got := s.ask(t); got != s.backend {
			t.Errorf("%s has a connection of %s", got, s.backend)
		}
	}

	// A sender without the key changes nothing, and is counted.
	at := netip.AddrPortFrom(lanAddress(directorHost, false), model.DefaultLoadPort)
	conn, err := l.other.DialContext(t.Context(), "udp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l.waitForgery(t, conn)
}

// waitForgery sends datagrams that are no reports until one is counted: a datagram may be lost.
func (l *loadsLab) waitForgery(t *testing.T, conn net.Conn) {
	t.Helper()
	waitFor(t, "a message that is none of an agent's to be counted", func() bool {
		if _, err := conn.Write(make([]byte, 100)); err != nil {
			return false
		}
		return strings.Contains(on(t, l.director, weir, "status", "--alive", "--socket", l.running.socket), "reports of loads foreign")
	})
}
