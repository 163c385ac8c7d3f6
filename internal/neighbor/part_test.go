package neighbor

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// A director does not answer for a VIP that it gives up before the group knows of that, whatever
// it decides meanwhile: its request may be done already, and another director may answer.
func TestGivenUpIsNotHeld(t *testing.T) {
	p := &part{self: director(1), giving: map[model.VIP]bool{}}
	owns := func(owned ...model.VIP) *model.NeighborGroup {
		g := &model.NeighborGroup{Owners: map[model.VIP]model.NeighborOwner{}}
		for _, vip := range owned {
			g.Owners[vip] = model.NeighborOwner{Director: director(1), Mine: true}
		}
		return g
	}
	a, b := vip(1), vip(2)
	list := func(vips ...model.VIP) []model.VIP { return vips }
	for _, step := range []struct {
		what          string
		group         *model.NeighborGroup
		decided       decision
		hold, release []model.VIP
	}{
		{"it has both", owns(a, b), decision{hold: list(a, b)}, list(a, b), nil},
		{"it gives one up", owns(a, b), decision{hold: list(a), release: list(b)}, list(a), list(b)},
		{"it would have it again, and does not know whether it is given up", owns(a, b), decision{hold: list(a, b)}, list(a), list(b)},
		{"it is given up", owns(a), decision{hold: list(a), claim: list(b)}, list(a), nil},
		{"it is its again", owns(a, b), decision{hold: list(a, b)}, list(a, b), nil},
	} {
		hold, release := p.keep(step.group, step.decided)
		if !slices.Equal(hold, step.hold) || !slices.Equal(release, step.release) {
			t.Errorf("%s: it answers for %v and gives up %v, want %v and %v", step.what, hold, release, step.hold, step.release)
		}
	}
}

// A director offers its own addresses of full NAT, and those of another one while that is not there.
func TestAddressesOfAbsentDirectorsAreOffered(t *testing.T) {
	own, lost, there, plain, tenants := vip(1), vip(2), vip(3), vip(4), in(100, vip(3))
	sources := Sources{Own: []netip.Addr{own.Address}, Others: []netip.Addr{lost.Address, there.Address}}
	all := []model.VIP{own, lost, there, plain, tenants}
	homes := map[netip.Addr]netip.Addr{own.Address: director(1), there.Address: director(3), plain.Address: director(3)}
	offers, home := sources.offered(all, director(1), homes)
	if !slices.Equal(offers, []model.VIP{own, lost, plain, tenants}) || !slices.Equal(home, []netip.Addr{own.Address}) {
		t.Errorf("offered are %v, of them its own %v", offers, home)
	}
	homes[lost.Address] = director(2)
	if offers, _ := sources.offered(all, director(1), homes); slices.Contains(offers, lost) {
		t.Error("the address of a director that has returned is offered")
	}
}

// A director is silent for a while before its lease ends, however short that is.
func TestMargin(t *testing.T) {
	for _, lease := range []model.Duration{model.MinNeighborLease, model.DefaultNeighborLease, model.MaxNeighborLease} {
		of := margin(time.Duration(lease))
		if of < minMargin || of > time.Duration(lease)/4 {
			t.Errorf("of a lease of %v the last %v are not used", lease, of)
		}
	}
}
