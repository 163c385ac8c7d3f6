package test

import (
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// A director that answers in a VLAN on its second trunk, while packets to backends there leave by the first, says so
// until the segment names its interface.
//
//	director --- first
//	         --- second, with vlan:100
func TestAnswersAndBackendsOnDifferentTrunks(t *testing.T) {
	t.Parallel()
	l := netlab.ForTest(t)
	director := l.Host("director")
	for _, name := range []string{"first", "second"} {
		l.Link(director, l.Switch(name), netlab.LinkOptions{XDP: true, Tagged: true})
	}
	const file = "director: {interfaces: [eth0, eth1], neighbor: {interfaces: [{name: eth1, segment: 'vlan:100'}]}}\nservices:\n" +
		"- {name: red, segment: 'vlan:100', vip: 10.7.0.100, protocol: tcp, port: 80, mode: l2dsr, backends: [{address: 10.7.0.11, mac: '02:00:00:00:00:0b'}]}\n"
	d := startDaemon(t, director, "run", file)
	const words = "packets to backend 10.7.0.11 in vlan:100 leave by eth0"
	d.waitFor("tell of the two trunks", func() bool { return d.hasProblem(model.ProblemSegment, words) })
	if got := d.backends()[0].Interface; got != "eth0" {
		t.Errorf("packets to the backend leave by %s", got)
	}
	d.edit(file + "segments: [{id: 'vlan:100', interface: eth1}]\n")
	d.waitFor("tell of them no more", func() bool { return !d.hasProblem(model.ProblemSegment, words) && d.backends()[0].Interface == "eth1" })
}
