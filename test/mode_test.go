package test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// No connection breaks and no UDP flow goes elsewhere when the mode of a service or of one backend
// changes, before, after and together with changes of the ring: the director remembers the backend,
// not how packets get there.
//
//	client --- router --- switch --- director
//	                             --- backend1 ... backend3
func TestFlowsOutliveAnotherMode(t *testing.T) {
	t.Parallel()
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

// In nat a backend's sockets have other addresses than in the other modes: no connection survives
// the change. But UDP flows stay at their backend, and a client that has sent nothing meanwhile
// finds its connection again when the mode changes back, whatever happened to the ring.
//
//	client --- router --- switch --- director
//	                             --- backend1 ... backend3
func TestFlowsOutliveNAT(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 3})
	ways := []way{{mode: "nat"}, {mode: "nat", inner6: true, outer6: true}}
	text := func(interfaces, uplink, mode string, backends []backend) string {
		var services []string
		for _, w := range ways {
			for _, protocol := range []string{"tcp", "udp"} {
				services = append(services, strings.Replace(w.service(protocol, fmt.Sprint(memoryPort), backends), "  mode: nat\n", "  mode: "+mode+"\n", 1))
			}
		}
		return configText(interfaces, uplink, services...)
	}
	for _, b := range l.backends {
		startDaemon(t, b, "agent", text("", "eth0", "gue", everyBackend(3)))
		for _, w := range ways {
			l.answerAt(b, netip.AddrPortFrom(w.vip(), memoryPort)) // for the other modes
		}
	}
	l.serveMemory(ways...)
	director := startDaemon(t, l.director, "run", text("eth0", "", "l2dsr", everyBackend(3)))
	direct, translated, datagrams := &flowsUnderTest{lab: l}, &flowsUnderTest{lab: l}, &flowsUnderTest{lab: l}
	open := func(f *flowsUnderTest, network string, n int) {
		for range n {
			for _, w := range ways {
				f.dial(w, network)
			}
		}
	}
	become := func(mode string, backends []backend, generations int) {
		director.edit(text("eth0", "", mode, backends))
		director.ready()
		director.waitFor("have the mode and the generations", func() bool {
			return director.reaches("backend2", mode) && director.generations(generations)
		})
	}
	open(direct, "tcp", 10)
	open(datagrams, "udp", 10)
	direct.goOn("before any change")
	datagrams.goOn("before any change")
	become("nat", []backend{{number: 1, weight: 20}, {number: 2}, {number: 3, weight: 300}}, 2)
	datagrams.goOn("nat, and other weights")
	open(translated, "tcp", 10)
	translated.goOn("nat")
	become("nat", []backend{{number: 1}, {number: 2}, {number: 3, weight: 10}}, 3)
	datagrams.goOn("other weights in nat")
	translated.goOn("other weights in nat")
	become("ipip", []backend{{number: 1}, {number: 2}, {number: 3, weight: 10}}, 3)
	direct.goOn("ipip, after they have sent nothing in nat")
	datagrams.goOn("ipip")
	open(direct, "tcp", 2)
	direct.goOn("ipip, and new connections")
}

// reaches reports whether packets of every service go to a backend in this mode.
func (d *daemon) reaches(backend, mode string) bool {
	services, err := d.services()
	return err == nil && !slices.ContainsFunc(services, func(s model.ServiceStatus) bool {
		return slices.ContainsFunc(s.Backends, func(b model.BackendStatus) bool { return b.Name == backend && b.Mode.String() != mode })
	})
}
