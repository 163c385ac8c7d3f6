package director

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// A ring names the owners of its slots, also owners that have lost all slots and are gone.
func TestRingOf(t *testing.T) {
	a, b, gone := netip.MustParseAddrPort("10.0.0.1:0"), netip.MustParseAddrPort("10.0.0.2:8080"), netip.MustParseAddrPort("10.0.0.3:0")
	in := []model.Segment{{Kind: model.SegmentVLAN, ID: 7}, {}}
	s := &model.TableService{Name: "web",
		Backends: []model.TableBackend{{Name: "a", Address: a.Addr(), Segment: in[0]}, {Name: "b", Address: b.Addr(), Port: 8080, Segment: in[1]}},
		Ring:     model.Ring{Slots: []model.Slot{{Owner: 0}, {Owner: 1}, {Owner: 1}, {Owner: model.NoBackend}, {Owner: 0}}}}
	for _, c := range []struct {
		name   string
		before []netip.AddrPort
		want   api.Ring
	}{
		{"nothing is known of before", nil, api.Ring{Service: "web", Segments: in, Backends: []string{"a", "b"}, Owners: []int{0, 1, 1, -1, 0}}},
		{"another size", []netip.AddrPort{a, b}, api.Ring{Service: "web", Segments: in, Backends: []string{"a", "b"}, Owners: []int{0, 1, 1, -1, 0}}},
		{"some have moved", []netip.AddrPort{a, a, b, gone, {}},
			api.Ring{Service: "web", Segments: in, Backends: []string{"a", "b", "10.0.0.3:0"}, Owners: []int{0, 1, 1, -1, 0}, Compared: true,
				Moved: []api.RingMove{{Slot: 1, From: 0}, {Slot: 3, From: 2}, {Slot: 4, From: -1}}}},
	} {
		if diff := cmp.Diff(c.want, ringOf(s, c.before)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
