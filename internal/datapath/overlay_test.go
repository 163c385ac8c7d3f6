package datapath

import (
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// The VNI on the wire is the configured one, else the one that was learned, else the ID's. That of a network of OVN is not
// known before OVN has said it: the ID may be another tenant's.
func TestVNIOnTheWire(t *testing.T) {
	geneve := func(id uint32) model.Segment { return model.Segment{Kind: model.SegmentGeneve, ID: id} }
	of := &knownInside{
		segments: map[model.Segment]*model.SegmentSettings{
			geneve(1): {ID: geneve(1), Network: "a"},
			geneve(2): {ID: geneve(2), Network: "b"},
			geneve(3): {ID: geneve(3), Network: "c", VNI: 33},
			geneve(4): {ID: geneve(4)},
		},
		vnis: map[model.Segment]uint32{geneve(2): 22, geneve(3): 333},
	}
	for id, want := range map[uint32]struct {
		vni   uint32
		known bool
	}{1: {0, false}, 2: {22, true}, 3: {33, true}, 4: {4, true}, 5: {5, true}} {
		wire, known := of.wire(geneve(id))
		if known != want.known || known && wire != geneve(want.vni) {
			t.Errorf("%s is %s on the wire, known: %v, want %+v", geneve(id), wire, known, want)
		}
	}
	if _, problem := of.inside(model.TableBackend{Segment: geneve(1)}); !strings.Contains(problem, "network a") {
		t.Errorf("a backend that OVN has nowhere: %q", problem)
	}
}
