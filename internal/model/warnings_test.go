package model_test

import (
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// A segment in VXLAN or Geneve that only clients and routers name may be mistyped. VLANs, and what services, backends or
// segments name, are not.
func TestWarnOfSegmentsThatNothingNames(t *testing.T) {
	id := func(kind model.SegmentKind, number uint32) model.Segment {
		return model.Segment{Kind: kind, ID: number}
	}
	ofBackend := id(model.SegmentGeneve, 3)
	c := model.Config{
		Segments: []model.SegmentSettings{{ID: id(model.SegmentVXLAN, 1)}},
		Services: []model.Service{{Name: "web", Segment: id(model.SegmentVXLAN, 2), VIP: netip.MustParseAddr("172.16.0.100"), Mode: model.L2DSR,
			Backends: []model.Backend{{Address: netip.MustParseAddr("172.16.0.11"), Segment: &ofBackend, Weight: 1, State: model.Active}}}},
		API: model.API{Clients: []model.APIClient{
			{Name: "known", Segments: []model.Segment{id(model.SegmentVXLAN, 1), id(model.SegmentVXLAN, 2), ofBackend, id(model.SegmentVLAN, 9999>>4)}},
			{Name: "mistyped", Segments: []model.Segment{id(model.SegmentVXLAN, 1), id(model.SegmentGeneve, 1)}},
			{Name: "agent", Segment: id(model.SegmentVXLAN, 9999)}}},
		BGP: model.BGP{Neighbors: []model.BGPNeighbor{{Segment: id(model.SegmentVXLAN, 1)}, {Segment: id(model.SegmentVXLAN, 9999)}}, Prefixes: []model.BGPPrefix{{Segment: id(model.SegmentVXLAN, 9999)}}},
	}
	var paths []string
	for _, w := range c.Warnings(model.Roles{Director: true}) {
		if strings.Contains(w.Problem, "is in no segments") {
			paths = append(paths, w.Path)
		}
	}
	if got, want := strings.Join(paths, " "), "api.clients[1].segments[1] api.clients[2].segment bgp.neighbors[1].segment bgp.prefixes[0].segment"; got != want {
		t.Errorf("it warns of %s, and not of %s", got, want)
	}
	if found := c.Warnings(model.Roles{Agent: true}); len(found) > 0 {
		t.Errorf("an agent's file is warned of %v", found)
	}
}
