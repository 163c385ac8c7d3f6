package director

import (
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
)

// A segment that has more than a limit that came later is told, until it has less.
func TestSegmentsBeyondTheirLimits(t *testing.T) {
	red := model.Segment{Kind: model.SegmentVXLAN, ID: 5001}
	service := model.Service{Name: "web", Segment: red, VIP: netip.MustParseAddr("172.16.0.10"), Backends: make([]model.Backend, 3)}
	c := model.Config{Services: []model.Service{service}}
	var e excess
	if found := e.problems(&c); len(found) > 0 {
		t.Errorf("without limits there is %+v", found)
	}
	c.Segments = []model.SegmentSettings{{ID: red, Limits: &model.SegmentLimits{ShareLimits: model.ShareLimits{Services: 1, Backends: 2}}}}
	for range 2 {
		found := e.problems(&c)
		if len(found) != 1 || found[0].Segment != red || found[0].Severity != model.SeverityWarning ||
			found[0].Text != "segment vxlan:5001 has more backends than the 2 that segments[0].limits lets it have: they go on, and no set that adds some is taken" {
			t.Errorf("with a limit of 2 backends there is %+v", found)
		}
	}
	service.Backends = service.Backends[:2]
	c.Services = []model.Service{service}
	if found := e.problems(&c); len(found) > 0 {
		t.Errorf("with two backends there is %+v", found)
	}
}
