package test

import (
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// Damage that an operator does on the director's host is a problem as soon as clients feel it, and
// until it is repaired: an address of SNAT, for which the backend asks, and the MTU of the uplink.
//
//	client --- router --- switch --- director
//	                             --- backend1
func TestFailuresOfTheHostAreProblems(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 1, lanMTU: 1600})
	w := way{mode: "nat", snat: true}
	startNginx(t, l.backends[0])
	director := startDaemon(t, l.director, "run", configText("eth0", "",
		w.service("tcp", "80", everyBackend(1)), way{mode: "ipip"}.service("tcp", "81", everyBackend(1))))
	snat := lanAddress(snatHost, false).String()
	listed := func() (parts []string) {
		for _, p := range director.directorStatus().Problems {
			if p.Kind == model.ProblemHost && p.Severity == model.SeverityError {
				parts = append(parts, p.Part)
			}
		}
		return parts
	}
	for _, hand := range []struct {
		breaks, mends, part, text string
		lost                      bool // the clients' connections
	}{
		{"addr del " + snat + "/24 dev eth0", "addr add " + snat + "/24 dev eth0", "snat " + snat, "nobody answers", true},
		{"link set eth0 mtu 1290", "link set eth0 mtu 1600", "mtu eth0", "1290 leaves 1270 bytes for packets by ipip", false},
	} {
		if got := curl(t, l.client, w.url("name")); got != "backend1" {
			t.Fatalf("before ip %s the answer is %q, want that of backend1", hand.breaks, got)
		}
		on(t, l.director, "ip", strings.Fields(hand.breaks)...)
		director.waitFor("list what ip "+hand.breaks+" has broken", func() bool { return slices.Equal(listed(), []string{hand.part}) })
		if got := director.raised(hand.text); got != 1 {
			t.Errorf("ip %s raises %d problems, want 1", hand.breaks, got)
		}
		if hand.lost {
			on(t, l.backends[0], "ip", "neigh", "flush", "dev", "eth0")
			if out, err := tryOn(t, l.client, "curl", "--silent", "--max-time", "1", w.url("name")); err == nil {
				t.Errorf("after ip %s clients are served: %s", hand.breaks, out)
			}
		}
		on(t, l.director, "ip", strings.Fields(hand.mends)...)
		director.waitFor("list nothing after ip "+hand.mends, func() bool { return len(listed()) == 0 })
	}
	if got := curl(t, l.client, w.url("name")); got != "backend1" {
		t.Errorf("put right, the answer is %q, want that of backend1", got)
	}
}
