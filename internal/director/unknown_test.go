package director

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// Packets that are dropped because nothing says where a tenant's client is are a problem from the first one on, until a
// minute after the last: not what an earlier process has counted, and no other reason's.
func TestUnknownClientsAreProblems(t *testing.T) {
	red := func(vni uint32) model.Segment { return model.Segment{Kind: model.SegmentVXLAN, ID: vni} }
	nat := func(vni uint32) model.Service {
		return model.Service{Name: "web", Segment: red(vni), VIP: netip.MustParseAddr("172.16.0.100"), Mode: model.NAT}
	}
	c := model.Config{
		Services: []model.Service{nat(5003), nat(5002), nat(5002), {Segment: red(5004), VIP: netip.MustParseAddr("172.16.0.100")}, nat(5001)},
		Segments: []model.SegmentSettings{{ID: red(5001), Gateway: []netip.Addr{netip.MustParseAddr("172.16.0.1")}}, {ID: red(5002), Gateway: []netip.Addr{netip.MustParseAddr("fd00::1")}}},
	}
	var u unknown
	began := time.Now()
	parts := func(after time.Duration) string {
		var parts []string
		for _, p := range u.problems(&c, began.Add(after)) {
			if p.Severity != model.SeverityWarning || p.Fix == "" || p.Segment != (model.Segment{}) {
				t.Errorf("a problem is %+v", p)
			}
			parts = append(parts, p.Part)
		}
		return strings.Join(parts, " ")
	}
	for _, step := range []struct {
		after  time.Duration
		totals []uint64
		want   string
	}{
		{0, []uint64{7, 8, 9}, ""},
		{time.Second, []uint64{7, 8, 9}, ""},
		{2 * time.Second, []uint64{8, 8, 9}, "drop_overlay_peer"},
		{50 * time.Second, []uint64{8, 9, 9}, "drop_overlay_peer drop_overlay_host"},
		{unknownLasts + 3*time.Second, []uint64{8, 9, 9}, "drop_overlay_host"},
		{unknownLasts + 51*time.Second, []uint64{8, 9, 9}, ""},
		{unknownLasts + 52*time.Second, []uint64{8, 9, 10}, "drop_overlay_option"},
	} {
		u.take(step.totals, began.Add(step.after))
		if got := parts(step.after); got != step.want {
			t.Errorf("after %v, with %v, there is %q and not %q", step.after, step.totals, got, step.want)
		}
	}
	u = unknown{}
	u.take([]uint64{8, 9, 10}, began)
	u.take([]uint64{8, 10, 10}, began)
	if found := u.problems(&c, began); len(found) != 1 || !strings.HasSuffix(found[0].Text, "where in the segment the client is; no gateway in vxlan:5002, vxlan:5003") {
		t.Errorf("the segments without a gateway of IPv4 are vxlan:5002 and vxlan:5003, and it says %+v", found)
	}
}
