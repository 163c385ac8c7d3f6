package engine

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
)

func nobodyDown(netip.AddrPort) bool { return false }

// Ways say where new flows go: of 200,000 of as many clients each pair of backends has the
// part that it is said to have, whatever changes, and all ways together are everything.
func TestWays(t *testing.T) {
	for name, change := range map[string]func(s *model.Service){
		"nothing":          func(*model.Service) {},
		"one is gone":      func(s *model.Service) { s.Backends = s.Backends[1:] },
		"one weighs twice": func(s *model.Service) { s.Backends[0].Weight = 200 },
		"one drains":       func(s *model.Service) { s.Backends[1].State = model.Draining },
		"a smaller size":   func(s *model.Service) { s.RingSize = 499 },
		"another affinity": func(s *model.Service) { s.Affinity = model.AffinitySourceIP },
	} {
		states := changed(web(4), change)
		down := states[0].List[0].Backends[3].Endpoint()
		for _, isDown := range []func(netip.AddrPort) bool{nobodyDown, func(b netip.AddrPort) bool { return b == down }} {
			shift := Shifts(states[0], states[1])[0]
			ways := shift.Ways(isDown)
			got := map[Way]float64{}
			const flows = 200_000
			r, id := rand.New(rand.NewPCG(3, 4)), states[0].List[0].ID()
			was, is := live(shift.Before, isDown), live(shift.After, isDown)
			for range flows {
				f := model.Flow{Source: netip.AddrFrom4([4]byte{198, 18, byte(r.Uint32()), byte(r.Uint32())}), SourcePort: uint16(r.Uint32()),
					Destination: id.VIP, DestinationPort: 80, Protocol: uint8(model.TCP)}
				at := func(s *model.TableService, owners []netip.AddrPort) netip.AddrPort {
					return owners[s.Ring.SlotOf(f.Hash(s.Salt, s.Affinity))]
				}
				got[Way{at(shift.Before, was), at(shift.After, is)}] += 1.0 / flows
			}
			total, elsewhere := 0.0, 0.0
			for way, share := range ways {
				if total += share; way.From != way.To {
					elsewhere += share
				}
				if math.Abs(share-got[way]) > 0.02 {
					t.Errorf("%s: %.3f of all flows go from %v to %v, want %.3f", name, got[way], way.From, way.To, share)
				}
				if !isDown(down) {
					continue
				}
				if way.From == down || way.To == down {
					t.Errorf("%s: %.3f go from %v to %v, and %v is down", name, share, way.From, way.To, down)
				}
			}
			if math.Abs(total-1) > 1e-9 {
				t.Errorf("%s: all ways are %.6f of all flows", name, total)
			}
			if want := float64(shift.Moved()) / float64(shift.Is.Slots); !isDown(down) && math.Abs(elsewhere-want) > 0.001 {
				t.Errorf("%s: %.4f goes elsewhere, and %.4f of the slots move", name, elsewhere, want)
			}
		}
	}
}

// A new service has no owners before the change, and a removed one none after it.
func TestShiftsOfServicesThatComeAndGo(t *testing.T) {
	one, other := changed(web(2))[0], web(3)
	other.Port = model.PortRange{First: 443, Last: 443}
	both := changed(other)[0]
	both.List = append(both.List, one.List...)
	both.Logs[one.List[0].ID()] = one.Logs[one.List[0].ID()]
	shifts := Shifts(one, both)
	if len(shifts) != 2 || shifts[0].Before == nil || shifts[0].After == nil || shifts[1].Before != nil || shifts[1].ID != other.ID() {
		t.Fatalf("shifts are %+v", shifts)
	}
	for way, share := range shifts[1].Ways(nobodyDown) {
		if way.From.IsValid() || !way.To.IsValid() || share < 0.3 || share > 0.4 {
			t.Errorf("of a service that comes %.3f goes from %v to %v", share, way.From, way.To)
		}
	}
	for way := range Shifts(both, one)[0].Ways(nobodyDown) {
		if !way.From.IsValid() || way.To.IsValid() {
			t.Errorf("of a service that goes something goes from %v to %v", way.From, way.To)
		}
	}
	if n := shifts[1].Moved(); n != 0 {
		t.Errorf("of a service that comes %d slots move", n)
	}
}

// The owner of a hash's slot gets new flows of that hash.
func TestOwnerAt(t *testing.T) {
	table := Shifts(changed(web(4))[0], Services{})[0].Before
	at, r := OwnerAt(table), rand.New(rand.NewPCG(5, 6))
	for range 10_000 {
		hash := r.Uint64()
		want := table.Backends[table.Ring.Slots[table.Ring.SlotOf(hash)].Owner].Endpoint()
		if got := at(uint32(hash >> 32)); got != want {
			t.Fatalf("hash %x is of %v, want %v", hash, got, want)
		}
	}
	if got := OwnerAt(nil)(7); got.IsValid() {
		t.Errorf("of a service that is not there %v owns a slot", got)
	}
}
