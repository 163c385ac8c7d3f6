package neighbor

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

func director(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }
func vip(n int) model.VIP {
	return model.Untagged(netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}))
}

// in returns a VIP in a VLAN.
func in(id uint32, v model.VIP) model.VIP {
	return model.VIP{Segment: model.Segment{Kind: model.SegmentVLAN, ID: id}, Address: v.Address}
}

// group is a registry without leases: the directors in members are there.
type group struct {
	members map[netip.Addr][]model.VIP
	owners  map[model.VIP]netip.Addr
}

// of returns what one director knows of it.
func (g *group) of(self netip.Addr) *model.NeighborGroup {
	known := &model.NeighborGroup{Known: true, Joined: true, Members: g.members, Owners: map[model.VIP]model.NeighborOwner{}}
	for vip, owner := range g.owners {
		known.Owners[vip] = model.NeighborOwner{Director: owner, Mine: owner == self}
	}
	return known
}

// lose takes a director out of the group, and what it owned.
func (g *group) lose(d netip.Addr) {
	delete(g.members, d)
	maps.DeleteFunc(g.owners, func(_ model.VIP, owner netip.Addr) bool { return owner == d })
}

// step lets one director do what it decides, and returns whether that was anything.
func (g *group) step(self netip.Addr, settled func(netip.Addr) bool) bool {
	d := plan(self, g.members[self], g.of(self), settled)
	for _, vip := range d.claim {
		if _, owned := g.owners[vip]; !owned {
			g.owners[vip] = self
		}
	}
	for _, vip := range d.release {
		delete(g.owners, vip)
	}
	return len(d.claim)+len(d.release) > 0
}

// settle lets all directors do what they decide, in any order, until nobody does anything.
func (g *group) settle(t *testing.T, random *rand.Rand) {
	t.Helper()
	for range 1000 {
		did := false
		directors := slices.SortedFunc(maps.Keys(g.members), netip.Addr.Compare)
		random.Shuffle(len(directors), func(i, j int) { directors[i], directors[j] = directors[j], directors[i] })
		for _, d := range directors {
			did = g.step(d, always) || did
		}
		if !did {
			return
		}
	}
	t.Fatalf("the directors do not come to an end: %v", g.owners)
}

func always(netip.Addr) bool { return true }
func never(netip.Addr) bool  { return false }

// loads counts the VIPs of each.
func (g *group) loads() string {
	count := map[netip.Addr]int{}
	for d := range g.members {
		count[d] = 0
	}
	for _, d := range g.owners {
		count[d]++
	}
	var list []string
	for _, d := range slices.SortedFunc(maps.Keys(count), netip.Addr.Compare) {
		list = append(list, fmt.Sprintf("%d:%d", d.As4()[3], count[d]))
	}
	return strings.Join(list, " ")
}

func vips(n int) (list []model.VIP) {
	for i := range n {
		list = append(list, vip(i))
	}
	return list
}

// The loss of a director moves its VIPs and no others, and one that comes gets its share, and
// no more than that moves.
func TestPlanMovesLittle(t *testing.T) {
	g := &group{members: map[netip.Addr][]model.VIP{}, owners: map[model.VIP]netip.Addr{}}
	random := rand.New(rand.NewPCG(1, 2))
	changes := func(want string, most int, do func()) {
		t.Helper()
		before := maps.Clone(g.owners)
		do()
		g.settle(t, random)
		moved := 0
		for vip, owner := range before {
			if g.owners[vip] != owner {
				moved++
			}
		}
		if got := g.loads(); got != want || moved > most {
			t.Errorf("the directors have %s, want %s; %d VIPs moved, want %d at most", got, want, moved, most)
		}
	}
	join := func(n int) func() { return func() { g.members[director(n)] = vips(12) } }
	changes("1:12", 0, join(1))
	changes("1:6 2:6", 6, join(2))
	changes("1:4 2:4 3:4", 4, join(3))
	changes("1:6 3:6", 4, func() { g.lose(director(2)) })
	changes("1:4 2:4 3:4", 4, join(2))
	changes("1:4 2:4 3:4", 0, join(2))
	// One of them ceases to be able to answer for half of them.
	half := map[model.VIP]bool{}
	for vip, owner := range g.owners {
		if owner == director(3) && len(half) < 2 {
			half[vip] = true
		}
	}
	changes("1:4 2:4 3:4", 4, func() {
		g.members[director(3)] = slices.DeleteFunc(vips(12), func(vip model.VIP) bool { return half[vip] })
	})
	for vip := range half {
		if g.owners[vip] == director(3) {
			t.Errorf("%v is of one who does not offer it", vip)
		}
	}
}

// A director that has come gets what nobody has, and before it is settled nothing that
// somebody has.
func TestPlanWaitsForSettling(t *testing.T) {
	g := &group{members: map[netip.Addr][]model.VIP{director(1): vips(4)}, owners: map[model.VIP]netip.Addr{}}
	g.step(director(1), never)
	g.members[director(2)] = vips(5)
	for range 3 {
		g.step(director(1), never)
		g.step(director(2), never)
	}
	if got := g.loads(); got != "1:4 2:1" {
		t.Errorf("the directors have %s, want 1:4 2:1", got)
	}
	g.step(director(1), always)
	g.step(director(2), never)
	if got := g.loads(); got != "1:3 2:2" {
		t.Errorf("the directors have %s, want 1:3 2:2", got)
	}
}

// Whatever the directors offer, and whichever are there, they come to an end at which every
// VIP that some director offers has an owner that offers it, and no director has two more
// than another one that could have one of them.
func TestPlanComesToAnEnd(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		g := &group{members: map[netip.Addr][]model.VIP{}, owners: map[model.VIP]netip.Addr{}}
		all := vips(1 + random.IntN(20))
		for range 8 {
			d := director(1 + random.IntN(5))
			if random.IntN(3) == 0 {
				g.lose(d)
			} else {
				g.members[d] = slices.DeleteFunc(slices.Clone(all), func(model.VIP) bool { return random.IntN(4) == 0 })
			}
			if random.IntN(2) == 0 { // or the next change comes before anybody has done anything
				g.settle(t, random)
				g.check(t)
			}
		}
	}
}

// Directors of version 0.1, which know of no VIPs in segments, and newer ones come to an end together,
// whatever the newer ones have in segments: every VIP in none has an owner, and they have equal shares.
func TestPlanBesideTheVersionBefore(t *testing.T) {
	g := &group{members: map[netip.Addr][]model.VIP{}, owners: map[model.VIP]netip.Addr{}}
	before, newer, newest := director(1), director(2), director(3)
	tenants := []model.VIP{}
	for i := range 9 {
		tenants = append(tenants, in(100, vip(i)))
	}
	g.members[before], g.members[newer] = vips(4), slices.Concat(vips(4), tenants)
	// known is what the director before reads: it has no other keys.
	known := func() *group {
		k := &group{members: map[netip.Addr][]model.VIP{}, owners: map[model.VIP]netip.Addr{}}
		for d, offered := range g.members {
			k.members[d] = partOf(offered, false)
		}
		for v, d := range g.owners {
			if !v.InSegment() {
				k.owners[v] = d
			}
		}
		return k
	}
	settle := func(want string) {
		t.Helper()
		for range 100 {
			did := false
			for d := range g.members {
				if d != before {
					did = g.step(d, always) || did
					continue
				}
				k := known()
				did = k.step(before, always) || did
				maps.DeleteFunc(g.owners, func(v model.VIP, _ netip.Addr) bool { return !v.InSegment() })
				maps.Copy(g.owners, k.owners)
			}
			if !did {
				break
			}
		}
		got := ""
		for _, inSegments := range []bool{false, true} {
			some := &group{members: g.members, owners: map[model.VIP]netip.Addr{}}
			for v, d := range g.owners {
				if v.InSegment() == inSegments {
					some.owners[v] = d
				}
			}
			got += some.loads() + "; "
		}
		if got != want {
			t.Errorf("the directors have %swant %s", got, want)
		}
	}
	settle("1:2 2:2; 1:0 2:9; ")
	g.members[newest] = slices.Concat(vips(4), tenants)
	settle("1:2 2:1 3:1; 1:0 2:5 3:4; ")
	g.lose(newer)
	settle("1:2 3:2; 1:0 3:9; ")
	g.members[newer] = slices.Concat(vips(4), tenants)
	g.lose(before)
	settle("2:2 3:2; 2:4 3:5; ")
}

func (g *group) check(t *testing.T) {
	t.Helper()
	p := placement{members: g.members, owned: map[netip.Addr][]model.VIP{}}
	for vip, owner := range g.owners {
		p.owned[owner] = append(p.owned[owner], vip)
		if !p.offers(owner, vip) {
			t.Errorf("%v has %v, which it does not offer", owner, vip)
		}
	}
	for d, offered := range g.members {
		for _, vip := range offered {
			owner, owned := g.owners[vip]
			if !owned {
				t.Errorf("nobody has %v, which %v offers", vip, d)
			} else if p.load(owner)-p.load(d) >= 2 {
				t.Errorf("%v has %d VIPs, and %v, which offers %v too, has %d", owner, p.load(owner), d, vip, p.load(d))
			}
		}
	}
}

// Each director alone, with many VIPs, takes no long time: it decides with every change.
func BenchmarkPlan(b *testing.B) {
	g := &group{members: map[netip.Addr][]model.VIP{}, owners: map[model.VIP]netip.Addr{}}
	for i := range 4 {
		g.members[director(i+1)] = vips(4096)
	}
	for _, vip := range vips(4096) {
		g.owners[vip] = director(1)
	}
	known := g.of(director(1))
	for b.Loop() {
		plan(director(1), g.members[director(1)], known, always)
	}
}
