package test

import (
	"testing"
)

// One machine can be director and server, in every mode: the director's own host
// is a backend like the other one.
//
//	client --- router --- switch --- director, nginx
//	                             --- nginx
func TestDirectorIsABackend(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 1})
	startNginx(t, l.backends[0])
	startNginx(t, l.director)
	both := []backend{{number: 0}, {number: 1}}
	var services []string
	for _, w := range ways {
		services = append(services, w.service("tcp", "80", both))
	}
	startDaemon(t, l.director, "agent", configText("", "eth0", services...))
	l.start(services...)
	eachWay(t, func(t *testing.T, w way) {
		answers := map[string]int{}
		for range 40 {
			answers[curl(t, l.client, w.url("name"))]++
		}
		// A fair coin gives one side fewer than 4 of 40 once in 10^7 times.
		if answers["director"] < 4 || answers["backend1"] < 4 || len(answers) != 2 {
			t.Errorf("40 answers come from %v, want them from both", answers)
		}
	})
}
