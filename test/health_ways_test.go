package test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// Checks find that a backend is well in every mode and family, while the program runs: it must not
// take answers to checks for replies to a client.
//
//	client --- router --- switch --- director
//	                             --- backend1
func TestHealthInEveryMode(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 1})
	startNginx(t, l.backends[0])
	var services []string
	for _, w := range ways {
		services = append(services, w.service("tcp", "80", everyBackend(1))+
			"  health: {kind: http, http: {path: /name}, interval: 200ms, panic: 0}\n")
	}
	d := l.start(services...)
	ready := time.Now()
	var list []model.ServiceStatus
	well := func(s model.ServiceStatus) bool {
		h := s.Backends[0].Health
		return h.Probed.Add(-time.Duration(h.Took)).After(ready) && h.State == model.HealthUp && h.Failures == 0
	}
	defer func() {
		for _, s := range list {
			if !well(s) {
				t.Errorf("the backend of %s is found %+v", s.Name, s.Backends[0].Health)
			}
		}
	}()
	d.waitFor(fmt.Sprintf("find the backend of %d services up", len(ways)), func() bool {
		var err error
		list, err = d.services()
		return err == nil && !slices.ContainsFunc(list, func(s model.ServiceStatus) bool { return !well(s) })
	})
}
