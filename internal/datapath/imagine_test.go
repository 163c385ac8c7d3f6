package datapath

import (
	"math/rand/v2"
	"os"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/packet"
)

// What is said of a table that is not set is what is said of it when it is, and nothing is
// changed by saying it.
func TestExplainWith(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/wire1/disable_ipv6", []byte("1"), 0))
	for n := range 60 {
		addNeighbour(t, explainBackend(true, n))
		addNeighbour(t, explainBackend(false, n))
	}
	wire, err := netlink.LinkByName("wire0")
	must(t, err)
	x := &explainRun{T: t, r: rand.New(rand.NewPCG(4, 9)), d: openTest(t, explainLimits), wire: wire.Attrs().Index,
		seen: map[model.Chosen]int{}, reasons: map[string]int{}}
	x.change()
	compared, others := 0, 0
	for range rounds(4) + 1 {
		for range 60 {
			x.step(false)
		}
		next := x.random()
		frames, answers, before := make([][]byte, 3), make([]model.Explanation, 3), x.dump()
		for i := range frames {
			frames[i] = x.frameOf(next.Services)
			answers[i], err = x.d.ExplainWith(next, "wire0", frames[i])
			must(t, err)
		}
		x.unchanged(before)
		now := make([]string, len(frames))
		for i := range frames {
			e, err := x.d.Explain("wire0", frames[i])
			must(t, err)
			now[i] = e.Reason + string(e.Out)
		}
		x.table = next
		must(t, x.d.Set(next))
		for i, frame := range frames {
			e, err := x.d.Explain("wire0", frame)
			must(t, err)
			said := answers[i]
			compared++
			if now[i] != e.Reason+string(e.Out) {
				others++
			}
			if e.Backend != nil && e.Backend.Source.IsValid() { // of a new table of full NAT, whose salt is random
				e.Out, said.Out, said.Backend.Source = nil, nil, e.Backend.Source
			}
			if !reflect.DeepEqual(e, said) {
				t.Fatalf("said was %+v\nbackend %+v slot %+v, it is %+v\nbackend %+v slot %+v\n%s", said, said.Backend, said.Slot, e, e.Backend, e.Slot, packet.Describe(frame))
			}
		}
	}
	if others == 0 {
		t.Errorf("none of %d packets was another's by the next table: the test shows nothing", compared)
	}
}
