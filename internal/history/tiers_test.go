package history

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// A backend's tier is a part of the membership: another one is a generation, and no other key of the log changes.
func TestTierIsAGeneration(t *testing.T) {
	s := service(3)
	log := advanced(model.Log{}, s, 0)
	text, err := json.Marshal(log)
	if err != nil || strings.Contains(string(text), "tier") {
		t.Errorf("the log of a service without tiers is %s, %v", text, err)
	}
	s.Backends[2].Tier = 1
	log = advanced(log, s, time.Second)
	want(t, "another tier", numbers(log), 2, 1)
	if g := log.Generations[0]; g.Members[2].Tier != 1 || g.Slots != 1021 || g.Tiers() != 2 || len(g.InTier(1).Members) != 1 || len(g.InTier(0).Members) != 2 {
		t.Errorf("the generation is %v", g)
	}
	want(t, "the same tiers", numbers(advanced(log, s, time.Minute)), 2, 1)
}

// Rows of a service with tiers name backends of all: a change of size or affinity waits for one more generation.
func TestResizeWaitsForTiers(t *testing.T) {
	s := service(3)
	s.Backends[2].Tier = 1
	log := advanced(model.Log{}, s, 0)
	s.Backends[0].Weight = 9
	log = advanced(log, s, 0)
	s.RingSize = 2003
	if again := advanced(log, s, 0); again.Generations[0].Slots != 1021 || Current(again, s) {
		t.Error("two generations with tiers, and another size does not wait")
	}
	log, _ = Trim(log, s, nil, nil, start.Add(time.Hour))
	if log = advanced(log, s, time.Hour); log.Generations[0].Slots != 2003 {
		t.Error("with one generation another size waits")
	}
}

// Backends that start slowly have their part of their tier: the others of it, not those of other tiers, get the rest.
func TestSharesAreOfTiers(t *testing.T) {
	r := newRamping(t, 4)
	r.pass(10 * time.Second)
	r.s.Backends[2].Tier, r.s.Backends[3].Tier = 1, 1
	r.pass(10 * time.Second)
	r.want("two tiers", "100 100 100 100", 2)
	r.find(0, model.HealthDown)
	r.pass(2 * time.Second)
	r.want("one of tier 0 is down", "100 800 100 100", 3)
	r.find(1, model.HealthDown)
	r.s.Health.Panic = new(uint8)
	r.pass(2 * time.Second)
	r.want("all of tier 0 are down", "100 100 100 100", 4)
	if got := r.log.Share(netip.AddrPortFrom(r.s.Backends[0].Address, 0)); got == model.WholeShare {
		t.Error("a backend that is down keeps its whole share")
	}
}
