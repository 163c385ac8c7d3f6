package test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// No connection breaks and no UDP flow goes elsewhere when a service's mode changes, or
// that of one backend, before, after and together with changes of the ring: what the
// director remembers is of the backend, however packets get there.
//
//	client --- router --- switch --- director
//	                             --- backend1 ... backend3
func TestFlowsOutliveAnotherMode(t *testing.T) {
	l := newLab(t, size{backends: 3})
	ways := []way{{mode: "ipip"}, {mode: "ipip", inner6: true, outer6: true}}
	text := func(interfaces, uplink, mode, keys string, backends []backend) string {
		var services []string
		for _, w := range ways {
			for _, protocol := range []string{"tcp", "udp"} {
				services = append(services, strings.NewReplacer("  mode: ipip\n", "  mode: "+mode+"\n", "  backends:\n", keys+"  backends:\n").
					Replace(w.service(protocol, fmt.Sprint(memoryPort), backends)))
			}
		}
		return configText(interfaces, uplink, services...)
	}
	for _, b := range l.backends {
		startDaemon(t, b, "agent", text("", "eth0", "gue", "", everyBackend(3)))
	}
	l.serveMemory(ways...)
	director := startDaemon(t, l.director, "run", text("eth0", "", "l2dsr", "", everyBackend(3)))
	f := &flowsUnderTest{lab: l}
	open := func(n int) {
		for range n {
			for _, w := range ways {
				f.dial(w, "tcp")
				f.dial(w, "udp")
			}
		}
	}
	open(10)
	f.goOn("before any change")
	heavy := []backend{{number: 1, weight: 20}, {number: 2}, {number: 3, weight: 300}}
	for _, step := range []struct {
		what, mode, keys string
		backends         []backend
		generations      int
	}{
		{"other weights", "l2dsr", "", heavy, 2},
		{"l2dsr to ipip", "ipip", "", heavy, 2},
		{"ipip to gue", "gue", "", heavy, 2},
		{"other weights in gue", "gue", "", everyBackend(3), 3},
		{"one generation in gue", "gue", "  drain: 1s\n", everyBackend(3), 1},
		{"gue to l2dsr, and other weights", "l2dsr", "", heavy, 2},
		{"one generation in l2dsr", "l2dsr", "  drain: 1s\n", heavy, 1},
		{"l2dsr to gue", "gue", "  drain: 1s\n", heavy, 1},
		{"gue to ipip", "ipip", "  drain: 1s\n", heavy, 1},
	} {
		director.edit(text("eth0", "", step.mode, step.keys, step.backends))
		director.ready()
		director.waitFor("have the mode and the generations", func() bool {
			return director.reaches("backend2", step.mode) && director.generations(step.generations)
		})
		f.goOn(step.what)
		open(1)
		f.goOn(step.what + ", and new flows")
	}
	director.edit(strings.ReplaceAll(text("eth0", "", "ipip", "", heavy), "{name: backend2,", "{name: backend2, mode: l2dsr,"))
	director.waitFor("have the mode", func() bool { return director.reaches("backend2", "l2dsr") })
	f.goOn("one backend in another mode")
}

// reaches reports whether packets of every service go to a backend in this mode.
func (d *daemon) reaches(backend, mode string) bool {
	services, err := d.services()
	return err == nil && !slices.ContainsFunc(services, func(s model.ServiceStatus) bool {
		return slices.ContainsFunc(s.Backends, func(b model.BackendStatus) bool { return b.Name == backend && b.Mode.String() != mode })
	})
}
