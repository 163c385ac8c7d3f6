package test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
)

// policyServices are one TCP service for each way in which directors remember flows.
func policyServices(backends []backend, policy, keys string) (services []string) {
	for _, w := range memoryWays {
		text := w.service("tcp", fmt.Sprint(memoryPort), backends)
		services = append(services, strings.Replace(text, "  backends:\n", "  policy: "+policy+"\n"+keys+"  backends:\n", 1))
	}
	return services
}

// Connections that a policy has placed on any backend, whatever their hash says, stay there while
// backends and weights change, and when the director's process or the policy is replaced,
// repeatedly. With round-robin each backend gets its weight's share.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2, backend3
func TestPoliciesKeepConnections(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 3})
	for _, b := range l.backends {
		startDaemon(t, b, "agent", configText("", "eth0", policyServices(everyBackend(3), "maglev", "")...))
	}
	l.serveMemory(memoryWays...)
	text := func(policy string, backends ...backend) string {
		return configText("eth0", "", policyServices(backends, policy, "  ring-size: 251\n")...)
	}
	director := startDaemon(t, l.director, "run", text("round-robin", backend{number: 1, weight: 200}, backend{number: 2}, backend{number: 3}))
	f := &flowsUnderTest{lab: l}
	become := func(policy model.Policy, active int) {
		t.Helper()
		director.waitFor(fmt.Sprintf("place connections on %d backends by %v", active, policy), func() bool {
			services, err := director.services()
			return err == nil && len(services) == len(memoryWays) && !slices.ContainsFunc(services, func(s model.ServiceStatus) bool {
				return s.Policy != policy || activeIn(s) != active
			})
		})
	}
	open := func(each int) {
		t.Helper()
		for range each {
			for _, w := range memoryWays {
				f.dial(w, "tcp")
			}
		}
	}
	become(model.RoundRobin, 3)
	open(8)
	f.goOn("in turn")
	for _, w := range memoryWays {
		got := f.spread(w)
		if got["backend1"] != 4 || got["backend2"] != 2 || got["backend3"] != 2 {
			t.Errorf("8 connections over %s by turns of 2, 1 and 1 are %v", w, got)
		}
	}
	director.edit(text("round-robin", backend{number: 1, state: "draining"}, backend{number: 2, weight: 300}, backend{number: 3}))
	become(model.RoundRobin, 2)
	f.goOn("another order")
	open(2)
	f.goOn("more of them")
	director.end(syscall.SIGTERM)
	director.start()
	director.ready()
	f.goOn("after a restart")
	for _, policy := range []model.Policy{model.Maglev, model.LeastConn, model.P2C, model.Random, model.RoundRobin} {
		director.edit(text(policy.String(), everyBackend(3)...))
		become(policy, 3)
		f.goOn("policy " + policy.String())
		open(2)
		f.goOn("more of them")
	}
}

func activeIn(s model.ServiceStatus) (n int) {
	for _, b := range s.Backends {
		if b.State == model.Active {
			n++
		}
	}
	return n
}

// spread is how many flows of a way each backend has.
func (f *flowsUnderTest) spread(w way) map[string]int {
	got := map[string]int{}
	for _, flow := range f.flows {
		if strings.Contains(flow.name, " over "+w.String()+" from ") {
			got[flow.backend]++
		}
	}
	return got
}
