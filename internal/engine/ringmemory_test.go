package engine

import (
	"fmt"
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
)

// many returns services with backends of their own.
func manyServices(n int) []model.Service {
	list := make([]model.Service, n)
	for i := range list {
		s := web(3)
		s.Name, s.VIP = fmt.Sprintf("web-%d", i), netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		for j := range s.Backends {
			s.Backends[j].Address = netip.AddrFrom4([4]byte{10, byte(i), 0, byte(j + 1)})
		}
		list[i] = s
	}
	return list
}

// Of many services a change has the rings made that it needs, and not more are remembered than
// there is room for: what is forgotten is made again alike.
func TestRingsAreMadeForWhatChanges(t *testing.T) {
	const n = 20
	services := manyServices(n)
	slots := 0
	for _, most := range []int{0, 5 * 1021} {
		p := NewPlanner()
		p.rings.most = most
		p.Plan(config(services...), nil, nil)
		if p.rings.made != n {
			t.Errorf("for %d services %d rings were made", n, p.rings.made)
		}
		p.Plan(config(services...), nil, nil)
		if p.rings.made != n {
			t.Errorf("for the same services %d rings were made anew", p.rings.made-n)
		}
		changed := append([]model.Service(nil), services...)
		changed[7].Backends = changed[7].Backends[:2]
		got, _ := p.Plan(config(changed...), nil, nil)
		if p.rings.made != n+1 {
			t.Errorf("for one service that changes %d rings were made", p.rings.made-n)
		}
		want, _ := NewPlanner().Plan(config(changed...), nil, nil)
		for i := range want.Services {
			if fmt.Sprint(got.Services[i].Ring) != fmt.Sprint(want.Services[i].Ring) {
				t.Errorf("with room for %d slots service %d has another ring than by a planner that remembers nothing", most, i)
			}
		}
		has := 0
		for _, k := range p.rings.rings {
			has += len(k.ring.Owners)
		}
		if has != p.rings.slots || most > 0 && has > most || most == 0 && has != n*1021 {
			t.Errorf("with room for %d slots %d are remembered, counted as %d", most, has, p.rings.slots)
		}
		slots += has
	}
	if slots == 0 {
		t.Error("nothing was remembered")
	}
}
