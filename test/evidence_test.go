package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
	"weir.io/weir/lab/netlab"
)

// Connections outlive several drains and changes if agents report them to the directors' etcd, and
// break if agents do not. When they have ended, the log has one generation again. The parts mostly
// wait, and each has a lab of its own: they run in parallel.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2, backend3
//	                             --- store (an etcd)
func TestGenerationsStayForReportedConnections(t *testing.T) {
	t.Run("reported", func(t *testing.T) {
		t.Parallel()
		l := newEvidenceLab(t, true)
		sessions := l.changes(t)
		l.waitForReports(t, "slots are kept for connections", func(log model.LogStatus) bool { return log.Kept > 0 })
		for _, s := range sessions {
			if got := s.ask(t); got != s.backend {
				t.Fatalf("%s has a connection of %s", got, s.backend)
			}
			_ = s.Close()
		}
		l.waitForReports(t, "all connections have ended", func(log model.LogStatus) bool { return log.Generations == 1 })
		if kept := l.log(t).Kept; kept != 0 {
			t.Errorf("all connections have ended, and %d slots are kept", kept)
		}
	})
	t.Run("another affinity", func(t *testing.T) {
		t.Parallel()
		l := newEvidenceLab(t, true)
		var sessions []*session
		for range 40 {
			sessions = append(sessions, l.open(t, l.way))
		}
		flow := l.text(everyBackend(3)...)
		l.running.edit(strings.Replace(flow, "  mode: gue\n", "  mode: gue\n  affinity: source-ip\n", 1))
		waitFor(t, "a generation of the other affinity", func() bool { return l.log(t).Generations == 2 })
		began := time.Now()
		waitFor(t, "the drains to pass that a connection has to outlive", func() bool { return time.Since(began) > 3*shortDrain })
		l.waitForReports(t, "slots are kept for connections", func(log model.LogStatus) bool { return log.Kept > 0 })
		l.running.edit(flow)
		waitFor(t, "the way back to wait for connections", func() bool { return l.log(t).Waits })
		for _, s := range sessions {
			if got := s.ask(t); got != s.backend {
				t.Fatalf("%s has a connection of %s", got, s.backend)
			}
			_ = s.Close()
		}
		l.waitForReports(t, "all connections have ended", func(log model.LogStatus) bool { return !log.Waits })
	})
	t.Run("breaks without reports", func(t *testing.T) {
		t.Parallel()
		l := newEvidenceLab(t, false)
		broken := 0
		for _, s := range l.changes(t) {
			if got, err := s.tryAsk(); err != nil || got != s.backend {
				broken++
			}
		}
		if broken == 0 {
			t.Error("no connection broke: drain has not passed, or nothing moved")
		}
	})
}

type evidenceLab struct {
	*chanceLab
	way   way
	store string // the configuration's keys for etcd
}

const shortDrain = time.Second

func newEvidenceLab(t *testing.T, reports bool) *evidenceLab {
	t.Helper()
	l := &evidenceLab{chanceLab: &chanceLab{lab: newLab(t, size{backends: 3})}, way: way{mode: "gue"}}
	_, store := l.startStore(etcdlab.Options{Members: 1})
	l.store = store + "directors: ["
	for i, b := range l.backends {
		text := configText("", "eth0", l.service(everyBackend(3)...))
		if reports {
			text = strings.Replace(text, "directors: [", l.store, 1)
		}
		l.agents = append(l.agents, startDaemon(t, b, "agent", text))
		l.servers = append(l.servers, serveLines(t, b, fmt.Sprintf("backend%d", i+1)))
	}
	l.running = startDaemon(t, l.director, "run", l.text(everyBackend(3)...))
	if reports {
		waitFor(t, "reports of all agents", func() bool { return l.agentsHeard() == 3 })
	}
	return l
}

func (l *evidenceLab) service(backends ...backend) string {
	text := l.way.service("tcp", fmt.Sprint(linesPort), backends)
	return strings.Replace(text, "  mode: gue\n", fmt.Sprintf("  mode: gue\n  drain: %v\n", shortDrain), 1)
}

func (l *evidenceLab) text(backends ...backend) string {
	return strings.Replace(configText("eth0", "", l.service(backends...)), "directors: [", l.store, 1)
}

// changes opens connections, and drains one backend after the other, each for several
// drains.
func (l *evidenceLab) changes(t *testing.T) []*session {
	t.Helper()
	var sessions []*session
	for range 40 {
		sessions = append(sessions, l.open(t, l.way))
	}
	for draining := range 3 {
		backends := everyBackend(3)
		backends[draining].state = "draining"
		l.running.edit(l.text(backends...))
		l.running.ready()
		began := time.Now()
		waitFor(t, "the drains to pass that a connection has to outlive", func() bool { return time.Since(began) > 3*shortDrain })
	}
	return sessions
}

func (l *evidenceLab) log(t *testing.T) model.LogStatus {
	t.Helper()
	services, err := l.running.services()
	if err != nil || len(services) != 1 {
		t.Fatalf("the director has services %v, error %v; want one", services, err)
	}
	return services[0].Log
}

// waitForReports waits for the effect of agents' reports on the log. It takes two looks at the
// sockets, a report, and a look at the report, each some seconds apart.
func (l *evidenceLab) waitForReports(t *testing.T, because string, is func(model.LogStatus) bool) {
	t.Helper()
	var log model.LogStatus
	defer func() {
		if t.Failed() {
			t.Logf("the log is %+v", log)
		}
	}()
	netlab.WaitUpTo(t, 90*time.Second, "the log to show that "+because, func() bool {
		log = l.log(t)
		return is(log)
	})
}

// agentsHeard is how many backends have reported to the director.
func (l *evidenceLab) agentsHeard() int {
	l.t.Helper()
	return l.running.directorStatus().Agents.Reporting
}
