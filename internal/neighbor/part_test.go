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
	p := &part{self: director(1), giving: map[netip.Addr]bool{}}
	owns := func(owned ...netip.Addr) *model.NeighborGroup {
		g := &model.NeighborGroup{Owners: map[netip.Addr]model.NeighborOwner{}}
		for _, vip := range owned {
			g.Owners[vip] = model.NeighborOwner{Director: director(1), Mine: true}
		}
		return g
	}
	a, b := vip(1), vip(2)
	list := func(vips ...netip.Addr) []netip.Addr { return vips }
	for _, step := range []struct {
		what          string
		group         *model.NeighborGroup
		decided       decision
		hold, release []netip.Addr
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

// A director is silent for a while before its lease ends, however short that is.
func TestMargin(t *testing.T) {
	for _, lease := range []model.Duration{model.MinNeighborLease, model.DefaultNeighborLease, model.MaxNeighborLease} {
		of := margin(time.Duration(lease))
		if of < minMargin || of > time.Duration(lease)/4 {
			t.Errorf("of a lease of %v the last %v are not used", lease, of)
		}
	}
}
