package desired

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Before there is a controller a director knows whether its file goes together with the sets: in a group those are
// the group's, and its own only where they have services.
func TestGoesWith(t *testing.T) {
	file, vxlan := config(web("a", 1)), web("b", 1)
	vxlan.VIP, vxlan.Mode = vxlan.VIP.Next(), model.L2DSR
	if err := vxlan.Segment.UnmarshalText([]byte("vxlan:5001")); err != nil {
		t.Fatal(err)
	}
	sets := func(owner string, services ...model.Service) store.State {
		var documents []model.Document
		for _, s := range services {
			documents = append(documents, model.Document{Service: s})
		}
		return store.State{Sets: map[string]store.Set{owner: {Documents: documents}}}
	}
	with, none := sets("red", vxlan), sets("red")
	for _, c := range []struct {
		name        string
		own, shared store.State
		inGroup     bool
		want        bool
	}{
		{"a set that needs a VTEP", with, store.State{}, false, false},
		{"no set", store.State{}, store.State{}, false, true},
		{"a set of the group's", store.State{}, with, true, false},
		{"an own set that hides the group's of its owner", with, none, true, false},
		{"an empty set that hides nothing", none, with, true, false},
		{"the file's former services", sets(store.OwnerFile, vxlan), store.State{}, false, true},
	} {
		if got := GoesWith(file, c.own, c.shared, c.inGroup); got != c.want {
			t.Errorf("%s: the file goes together with it: %v, want %v", c.name, got, c.want)
		}
	}
}

// A set whose backend would be the director itself in its tenant's network, or whose VIP is a host's there, is refused
// with the place of the mistake in the set.
func TestSetsOfWhatTheDirectorIs(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		in := model.Segment{Kind: model.SegmentVXLAN, ID: 5001}
		file := config(web("a", 1))
		file.Director.VTEP = model.VTEP{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.200")}}
		file.Segments = []model.SegmentSettings{{ID: in, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.3")},
			Hosts: []model.SegmentHost{{Address: netip.MustParseAddr("10.0.0.9"), MAC: model.MAC{2, 9}, VTEP: netip.MustParseAddr("192.0.2.9")}}}}
		file.SetDefaults()
		if err := d.SetFile(file); err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			vip, backend, path, text string
		}{
			{"10.0.0.100", "10.0.0.3", "services[0].backends[0].address", "10.0.0.3 is this director's own address in vxlan:5001"},
			{"10.0.0.9", "10.0.0.4", "services[0].vip", `10.0.0.9 is the VIP of service "red" in vxlan:5001, and no host's`},
		} {
			s := web("red", 1)
			s.Segment, s.Mode, s.VIP = in, model.L2DSR, netip.MustParseAddr(test.vip)
			s.Backends[0].Address = netip.MustParseAddr(test.backend)
			_, err := d.Put(t.Context(), "red", config(s).Services, model.SetCondition{})
			var refused *RefusedError
			if !errors.As(err, &refused) || len(refused.Refusals) != 1 || refused.Refusals[0].Path != test.path || !strings.Contains(refused.Refusals[0].Problem, test.text) {
				t.Errorf("a set with the VIP %s and the backend %s is answered with %v, want %s: %s", test.vip, test.backend, err, test.path, test.text)
			}
		}
	})
}
