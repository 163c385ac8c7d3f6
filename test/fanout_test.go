package test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
)

// The CPU of the director's one receive queue gives packets of expensive services to another CPU. They arrive
// there, connections go on while the process begins anew, and packets of other services stay.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2, backend3
func TestFanOut(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 3})
	expensive := []way{{mode: "gue"}, {mode: "gue", inner6: true, outer6: true}, {mode: "nat", snat: true}, {mode: "nat", snat: true, inner6: true, outer6: true}}
	cheap := []way{{mode: "l2dsr"}, {mode: "ipip"}, {mode: "nat"}}
	var services []string
	for _, w := range append(expensive, cheap...) {
		services = append(services, w.service("tcp", fmt.Sprint(memoryPort), everyBackend(3)), w.service("udp", fmt.Sprint(memoryPort), everyBackend(3)))
	}
	for _, b := range l.backends {
		startDaemon(t, b, "agent", configText("", "eth0", services...))
	}
	l.serveMemory(append(expensive, cheap...)...)
	text := strings.Replace(configText("eth0", "", services...), "  snat:\n", "  fan-out: auto\n  snat:\n", 1)
	director := startDaemon(t, l.director, "run", text)
	status := func() *model.FanOutStatus {
		t.Helper()
		s := director.directorStatus().FanOut
		if s == nil || len(s.CPUs) == 0 {
			t.Fatalf("the status of fan-out is %+v", s)
		}
		return s
	}
	f := &flowsUnderTest{lab: l}
	for _, w := range cheap {
		f.dial(w, "tcp")
		f.dial(w, "udp")
	}
	f.goOn("cheap services")
	if s := status(); s.Given > 0 {
		t.Errorf("%d packets of cheap services are given to other CPUs", s.Given)
	}
	for _, w := range expensive {
		f.dial(w, "tcp")
		f.dial(w, "udp")
	}
	for range 100 {
		f.goOn("expensive services")
	}
	// Each of the eight flows has a packet of its client, and those of full NAT have replies.
	if s := status(); s.Given < 800 || s.Taken != s.Given || s.Dropped > 0 {
		t.Errorf("of %d packets %d were handled by other CPUs, and %d dropped", s.Given, s.Taken, s.Dropped)
	}
	before := status().Given
	director.end(syscall.SIGKILL)
	f.goOn("without a process")
	director.start()
	director.ready()
	f.goOn("with another process")
	if s := status(); s.Given <= before {
		t.Errorf("%d packets are counted, and were %d before the process", s.Given, before)
	}
	director.edit(strings.Replace(text, "fan-out: auto", "fan-out: 1", 1))
	director.waitFor("wait for a restart", func() bool { return len(problemsOf(director, model.ProblemRestart)) == 1 })
	director.end(syscall.SIGTERM)
	director.edit(strings.Replace(text, "  fan-out: auto\n", "", 1))
	director.start()
	director.ready()
	if s := director.directorStatus().FanOut; s != nil {
		t.Errorf("without fan-out its status is %+v", s)
	}
	f.goOn("without fan-out")
	director.end(syscall.SIGTERM)
	director.edit(strings.Replace(text, "fan-out: auto", "fan-out: 999", 1))
	director.start()
	director.ready()
	director.waitFor("say why no packet is given to other CPUs", func() bool {
		found := problemsOf(director, model.ProblemInterface)
		return len(found) == 1 && strings.Contains(found[0].Text, "director.fan-out is 999, and this host has")
	})
	f.goOn("too many other CPUs")
}
