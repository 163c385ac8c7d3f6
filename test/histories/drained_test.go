package histories

import (
	"math/rand/v2"
	"slices"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	"weir.io/weir/lab/twin"
)

// testDrained: while all remaining backends drain, slots of removed ones have no owner. The
// director accepts that: it drops packets of those slots, and serves all others.
func testDrained(t *testing.T, l *lab) {
	h := newLife(t, l, tcp, rand.New(rand.NewPCG(42, 1)), &tally{})
	h.service.Policy, h.service.Backends = model.Maglev, nil
	for number := range 3 {
		a := backendAddress(number, h.six)
		h.service.Backends = append(h.service.Backends, model.Backend{Name: a.String(), Address: a, Weight: 100, State: model.Active})
	}
	h.advance()
	h.service.Backends = slices.Clone(h.service.Backends[:1])
	h.service.Backends[0].State = model.Draining
	h.advance()
	d := h.directors[0]
	d.revision = len(h.revisions) - 1
	h.update(d)
	served := 0
	const connections = 200
	for range connections {
		f := h.newFlow()
		s := &twin.Segment{Connection: connection(f), Flags: packet.SYN, Sequence: h.r.Uint32()}
		if end, _ := h.walk(d, f, twin.Packet{Segment: s}, segmentFrame(s, "")); end != nil {
			served++
		}
	}
	if served == 0 || served == connections {
		t.Errorf("%d of %d connections were served", served, connections)
	}
}
