package kube

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

var (
	historyChanges = flag.Int("changes", 1000, "how many changes of Services TestKilledControllers makes")
	historyKills   = flag.Int("kills", 50, "how many controllers it kills meanwhile")
	historySeed    = flag.Uint64("seed", 8, "what its history is drawn with; 0: anything, which its log says")
)

// Controllers are killed at random moments while Services come, go, come back as others and change
// their requests: one or two families, several ports in TCP and UDP, addresses of their own or
// shared ones. No change gives an address, or a port of it, to two Services that may not share it,
// or moves a Service whose request did not change. Whenever all is done, claims, statuses and the
// director's set match what is computed from the requests; clients reach all of it; and nothing is
// left of removed Services.
func TestKilledControllers(t *testing.T) {
	seed := *historySeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	l := newLab(t, "  snat: {addresses: [10.2.0.16, \"fd00:2::16\"], ports: 20000-29999}\n")
	l.config = l.write("killed.yaml", strings.NewReplacer("203.0.113.1-203.0.113.2", historyAddresses, "duration: 4s", "duration: 2s").Replace(l.read(l.config)))
	h := newHistory(l, rand.New(rand.NewPCG(seed, seed)))
	leader := "c0"
	running := l.controller(leader)
	killed := 0
	for i := range *historyChanges {
		h.change()
		h.look(fmt.Sprintf("seed %d, change %d", seed, i))
		if due := (i + 1) * *historyKills / *historyChanges; due == killed {
			continue
		}
		// The controller has just begun to catch up with changes since the last one, or has done
		// some of them, or all.
		l.waitForLease(leader)
		waitFor(t, "a moment to kill the controller in", func() bool { return h.random.IntN(6) == 0 })
		stop(t, running)
		killed++
		leader = fmt.Sprintf("c%d", killed)
		running = l.controller(leader)
		if killed%10 == 0 {
			h.settle(fmt.Sprintf("seed %d, after change %d", seed, i))
		}
	}
	h.settle(fmt.Sprintf("seed %d, in the end", seed))
	h.reach()
	t.Logf("seed %d: %d changes, %d controllers killed; %s", seed, *historyChanges, killed, h)
	if *historyChanges >= 500 && (h.shared == 0 || h.lacked == 0 || h.refused == 0) {
		t.Errorf("the history is poor: %s", h)
	}
	for name := range h.there {
		l.deleteService(name)
	}
	clear(h.there)
	h.settle(fmt.Sprintf("seed %d, after the last Service", seed))
}
