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

// What the datapath does not forward of a segment is a problem of it, and weir segments shows it there.
func TestSegmentsNotForwarded(t *testing.T) {
	red, blue := model.Segment{Kind: model.SegmentVXLAN, ID: 5001}, model.Segment{Kind: model.SegmentVXLAN, ID: 5002}
	found := []model.SegmentProblem{{Segment: blue, Text: "no packets go to host 10.0.0.1"}, {Text: "no packets are taken from VTEP 192.0.2.1"}}
	problems := notForwarded(found)
	if len(problems) != 2 || problems[0].Segment != blue || problems[0].Part != "vxlan:5002" || problems[0].Text != "vxlan:5002: no packets go to host 10.0.0.1" ||
		problems[1].Part != "vtep" || problems[1].Severity != model.SeverityWarning {
		t.Errorf("problems are %+v", problems)
	}
	status := model.SegmentsStatus{Segments: []model.SegmentStatus{{ID: red}, {ID: blue, Problems: []string{"another"}}}}
	status.Note(found)
	if len(status.Segments[0].Problems) != 0 || len(status.Segments[1].Problems) != 2 || status.Segments[1].Problems[1] != found[0].Text {
		t.Errorf("segments are %+v", status.Segments)
	}
}

// Of a VLAN for which the host has an interface nothing is said: packets leave by that.
func TestOtherTrunks(t *testing.T) {
	vlan := model.Segment{Kind: model.SegmentVLAN, ID: 100}
	c := &model.Config{Director: model.Director{Interfaces: []string{"eth0", "eth1"}, Neighbor: model.Neighbor{Interfaces: []model.NeighborInterface{{Name: "eth1", Segment: vlan}}}},
		Services: []model.Service{{Name: "red", Segment: vlan, Mode: model.L2DSR, Backends: []model.Backend{{Address: netip.MustParseAddr("10.7.0.11"), MAC: model.MAC{2, 1}}}}}}
	for has, want := range map[bool]int{false: 1, true: 0} {
		found := otherTrunks(c, func(id uint32) bool { return id == 100 && has })
		if len(found) != want || want > 0 && (found[0].Segment != vlan || found[0].Fix == "") {
			t.Errorf("with an interface of the host's %v the problems are %+v", has, found)
		}
	}
}
