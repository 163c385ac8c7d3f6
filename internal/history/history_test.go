package history

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// service has n active backends of equal weight.
func service(n int) *model.Service {
	s := &model.Service{Name: "web", VIP: netip.MustParseAddr("192.0.2.1"), Mode: model.IPIP}
	for i := range n {
		s.Backends = append(s.Backends, model.Backend{
			Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Weight: 100, State: model.Active,
		})
	}
	return s
}

func advanced(log model.Log, s *model.Service, at time.Duration) model.Log {
	return Advance(log, s, start.Add(at))
}

// trimmed takes the numbers of the generations that are left.
func trimmed(log model.Log, s *model.Service, held Held, evidence Evidence, at time.Duration) []uint64 {
	log, _ = Trim(log, s, held, evidence, start.Add(at))
	return numbers(log)
}

func numbers(log model.Log) []uint64 {
	var list []uint64
	for _, g := range log.Generations {
		list = append(list, g.Number)
	}
	return list
}

func want(t *testing.T, what string, got []uint64, numbers ...uint64) {
	t.Helper()
	if !slices.Equal(got, numbers) {
		t.Errorf("%s: the log has generations %v, want %v", what, got, numbers)
	}
}

func TestAdvance(t *testing.T) {
	s := service(3)
	log := advanced(model.Log{}, s, 0)
	g := log.Generations[0]
	if g.Number != 1 || g.Slots != 1021 || len(g.Members) != 3 || !g.Since.Equal(start) {
		t.Errorf("the first generation is %v", g)
	}
	for name, change := range map[string]func(s *model.Service){
		"nothing":   func(*model.Service) {},
		"a name":    func(s *model.Service) { s.Backends[0].Name = "other" },
		"the mode":  func(s *model.Service) { s.Mode = model.GUE },
		"the order": func(s *model.Service) { slices.Reverse(s.Backends) },
		"health":    func(s *model.Service) { s.Backends[1].State = model.Down },
		"a nobody": func(s *model.Service) {
			s.Backends = append(s.Backends, model.Backend{Address: s.VIP, State: model.Active})
		},
	} {
		s := service(3)
		change(s)
		if again := advanced(log, s, time.Second); !reflect.DeepEqual(again, log) || !Current(log, s) {
			t.Errorf("another %s is a new generation", name)
		}
	}
	for name, change := range map[string]func(s *model.Service){
		"weight":      func(s *model.Service) { s.Backends[0].Weight = 1 },
		"port":        func(s *model.Service) { s.Backends[0].Port = 80 },
		"draining":    func(s *model.Service) { s.Backends[0].State = model.Draining },
		"backend":     func(s *model.Service) { s.Backends = service(4).Backends },
		"ring size":   func(s *model.Service) { s.RingSize = 2003 },
		"policy":      func(s *model.Service) { s.Policy = model.P2C },
		"nobody left": func(s *model.Service) { s.Backends = nil },
	} {
		s := service(3)
		change(s)
		next := advanced(log, s, time.Second)
		want(t, name, numbers(next), 2, 1)
		if Current(log, s) || !Current(next, s) {
			t.Errorf("%s: which generation is current is not said right", name)
		}
		if len(log.Generations) != 1 {
			t.Fatal("the log that was passed is another")
		}
	}
	g = advanced(log, service(2), -time.Hour).Generations[0]
	if !g.Since.Equal(start) {
		t.Errorf("with the clock set back, generation 2 began at %v, before its predecessor", g.Since)
	}
}

func TestTrimWithoutAgents(t *testing.T) {
	s := service(3)
	log := advanced(model.Log{}, s, 0)
	s.Backends[0].Weight = 50
	log = advanced(log, s, 10*time.Second)
	s.Backends[0].Weight = 20
	log = advanced(log, s, 20*time.Second)
	s.Retention = model.Duration(30 * time.Second)
	want(t, "at once", trimmed(log, s, nil, nil, 20*time.Second), 3, 2, 1)
	want(t, "before drain", trimmed(log, s, nil, nil, 39*time.Second), 3, 2, 1)
	want(t, "after drain", trimmed(log, s, nil, nil, 40*time.Second), 3, 2)
	want(t, "agents of others report", trimmed(log, s, nil, reported{1: 5}, 40*time.Second), 3, 2)
	want(t, "later", trimmed(log, s, nil, nil, time.Hour), 3)
	want(t, "the clock is set back", trimmed(log, s, nil, nil, -time.Hour), 3, 2, 1)
	if due := Due(log, s, nil, nil, start); !due.Equal(start.Add(40 * time.Second)) {
		t.Errorf("the next generation leaves at %v", due)
	}
	if due := Due(advanced(model.Log{}, s, 0), s, nil, nil, start); !due.IsZero() {
		t.Errorf("the only generation leaves at %v", due)
	}
	s.Retention = 0
	want(t, "default drain", trimmed(log, s, nil, nil, 69*time.Second), 3, 2, 1)
	want(t, "default drain", trimmed(log, s, nil, nil, 70*time.Second), 3, 2)
}

// reported is how many slots agents need each generation in, by its number.
type reported map[uint64]int

func (r reported) Reported(s *model.Service) bool { return s.Mode == model.GUE }

func (r reported) Guessed(*model.Service) time.Time { return time.Time{} }

func (r reported) Needed(_ *model.Service, g *model.Generation, _ []model.Generation, _ time.Time) *model.SlotSet {
	set := model.NewSlotSet(int(g.Slots))
	for i := range r[g.Number] {
		set.Add(i)
	}
	return set
}

func TestTrimByEvidence(t *testing.T) {
	s := service(3)
	s.Mode, s.MaxRetention = model.GUE, model.Duration(time.Hour)
	log := advanced(model.Log{}, s, 0)
	s.Backends[0].Weight = 50
	log = advanced(log, s, 0)
	s.Backends[0].Weight = 20
	log = advanced(log, s, 0)
	want(t, "nobody reports", trimmed(log, s, nil, nil, 2*time.Minute), 3)
	want(t, "needed", trimmed(log, s, nil, reported{1: 1}, 2*time.Minute), 3, 1)
	want(t, "not before drain", trimmed(log, s, nil, reported{}, time.Second), 3, 2, 1)
	if due := Due(log, s, nil, reported{1: 1}, start); !due.Equal(start.Add(time.Minute)) {
		t.Errorf("a generation is first compared with reports at %v", due)
	}
	stay, _ := Trim(log, s, nil, reported{1: 1, 2: 90}, start.Add(2*time.Minute))
	if due := Due(stay, s, nil, reported{}, start); !due.Equal(start.Add(time.Hour)) {
		t.Errorf("a needed generation leaves at %v", due)
	}
	if kept := Kept(stay); kept != 91 {
		t.Errorf("%d slots are kept, want 91", kept)
	}
	want(t, "agents report no more", trimmed(stay, s, nil, nil, 2*time.Minute), 3)
	stay, left := Trim(log, s, nil, reported{1: 1}, start.Add(2*time.Hour))
	want(t, "max-retention", numbers(stay), 3)
	if len(left) != 2 || left[0].Number != 2 || left[0].Cause != Drained || left[1].Number != 1 || left[1].Cause != Overdue {
		t.Errorf("there left %v, want generation 2, drained, and 1 at max-retention", left)
	}
	s.Backends = s.Backends[:0]
	if _, left := Trim(log, s, nil, nil, start); len(left) != 2 || left[0].Cause != Gone || left[1].Cause != Gone {
		t.Errorf("of a service without backends there left %v, want both old ones as their members are gone", left)
	}
}

// Flows of UDP begin with older owners, too, as long as no log says that agents report: what
// they say counts from a drain after that.
func TestReportsOfUDPCountLater(t *testing.T) {
	s := service(3)
	s.Mode, s.Protocol = model.GUE, model.UDP
	log := advanced(model.Log{}, s, 0)
	s.Backends[0].Weight = 50
	log = advanced(log, s, 0)
	want(t, "nobody reports", trimmed(log, s, nil, nil, time.Minute), 2)
	told, left := Trim(log, s, nil, reported{}, start.Add(time.Minute))
	if kept := Kept(told); len(left) != 0 || kept != int(log.Generations[1].Slots) {
		t.Fatalf("%v left, and %d slots of %d are kept", left, kept, log.Generations[1].Slots)
	}
	want(t, "before the next drain", trimmed(told, s, nil, reported{}, 2*time.Minute-1), 2, 1)
	want(t, "nobody needs it", trimmed(told, s, nil, reported{}, 2*time.Minute), 2)
	want(t, "it is needed", trimmed(told, s, nil, reported{1: 1}, 2*time.Minute), 2, 1)
	want(t, "at max-retention", trimmed(log, s, nil, reported{1: 1}, 24*time.Hour), 2)

	s.Backends[0].Weight = 20
	next := advanced(told, s, 90*time.Second)
	want(t, "directors know already", trimmed(next, s, nil, reported{1: 1}, 150*time.Second), 3, 1)
}

// A log is written when enough slots leave it, or any that others may wait for.
func TestShrunk(t *testing.T) {
	s := service(3)
	s.Mode = model.GUE
	log := advanced(model.Log{}, s, 0)
	s.Backends[0].Weight = 50
	log = advanced(log, s, 0)
	at := start.Add(2 * time.Minute)
	now, _ := Trim(log, s, nil, reported{1: 160}, at)
	if !Shrunk(log, now, nil) {
		t.Error("the first slots that leave are not worth a write")
	}
	for _, test := range []struct {
		slots int
		held  Held
		want  bool
	}{{160, nil, false}, {151, nil, false}, {150, nil, true}, {0, nil, true}, {159, Held{1: true}, true}, {160, Held{1: true}, false}} {
		next, _ := Trim(now, s, nil, reported{1: test.slots}, at)
		if got := Shrunk(now, next, test.held); got != test.want {
			t.Errorf("from 160 slots to %d, held %v: worth a write %v, want %v", test.slots, test.held, got, test.want)
		}
	}
}

// A generation is no repetition of one that has fewer slots left.
func TestRepeatedWithFewerSlots(t *testing.T) {
	all, some := model.NewSlotSet(53), model.NewSlotSet(53)
	all.Add(1)
	all.Add(2)
	some.Add(2)
	for _, test := range []struct {
		newer, older *model.SlotSet
		left         int
	}{{nil, nil, 1}, {nil, some, 1}, {all, some, 1}, {some, all, 2}, {some, nil, 2}} {
		log := []model.Generation{{Number: 2, Slots: 53, Kept: test.newer}, {Number: 1, Slots: 53, Kept: test.older}}
		if left := withoutRepeated(log, 1); len(left) != test.left {
			t.Errorf("%v before %v: %d generations are left, want %d", test.newer, test.older, len(left), test.left)
		}
	}
}

func TestHeldGenerationsStay(t *testing.T) {
	s := service(3)
	log := advanced(model.Log{}, s, 0)
	s.Backends[0].Weight = 50
	log = advanced(log, s, 0)
	log, _ = Trim(log, s, Held{1: true}, nil, start.Add(10*time.Minute))
	want(t, "held", numbers(log), 2, 1)
	want(t, "held until lately", trimmed(log, s, nil, nil, 10*time.Minute+59*time.Second), 2, 1)
	want(t, "held long ago", trimmed(log, s, nil, nil, 11*time.Minute), 2)
}

func TestWhoIsGoneStaysGone(t *testing.T) {
	s := service(3)
	log := advanced(model.Log{}, s, 0)
	all := s.Backends
	s.Backends = all[:2]
	log, _ = Trim(log, s, nil, nil, start)
	log = advanced(log, s, 0)
	s.Backends = all
	log, _ = Trim(log, s, nil, nil, start)
	log = advanced(log, s, 0)
	want(t, "came back", numbers(log), 3, 2, 1)
	if gone := log.Generations[2].Gone; len(gone) != 1 || gone[0] != all[2].Endpoint() {
		t.Errorf("in the first generation %v are gone", gone)
	}
	if log.Generations[0].Gone != nil || log.Generations[1].Gone != nil {
		t.Error("somebody is gone from where he was not")
	}
	s.Backends = service(9).Backends[6:]
	log, _ = Trim(log, s, nil, nil, start)
	log = advanced(log, s, 0)
	want(t, "all are new", trimmed(log, s, nil, nil, 0), 4)
}

// A backend that was away while the log was full must get a generation when there is room.
func TestBackAfterAFullLog(t *testing.T) {
	s := service(3)
	all := s.Backends
	s.RingSize = model.MaxRingSize // eight generations at most
	log := model.Log{}
	for i := range leastGenerations {
		s.Backends[0].Weight = uint16(i + 1)
		log = advanced(log, s, 0)
	}
	s.Backends = all[:2]
	log, _ = Trim(log, s, nil, nil, start)
	log = advanced(log, s, 0)
	want(t, "full", numbers(log), 8, 7, 6, 5, 4, 3, 2, 1)
	s.Backends = all
	if Current(log, s) {
		t.Error("the newest generation without somebody who is back is said to be current")
	}
	log, _ = Trim(log, s, nil, nil, start.Add(time.Hour))
	want(t, "room", numbers(advanced(log, s, time.Hour)), 9, 8)
}

func TestServiceWithoutMembersKeepsItsLast(t *testing.T) {
	s := service(2)
	log := advanced(model.Log{}, s, 0)
	s.Backends[0].State, s.Backends[1].State = model.Draining, model.Draining
	log = advanced(log, s, 0)
	want(t, "all drain", trimmed(log, s, nil, nil, time.Hour), 2, 1)
	if due := Due(log, s, nil, nil, start); !due.IsZero() {
		t.Errorf("the last generation with members leaves at %v", due)
	}
	more := service(3)
	log = advanced(log, more, time.Hour)
	want(t, "members again", trimmed(log, more, nil, nil, time.Hour+59*time.Second), 3, 1)
	want(t, "and drain later", trimmed(log, more, nil, nil, time.Hour+time.Minute), 3)
	s.Backends = nil
	log, _ = Trim(log, s, nil, nil, start)
	want(t, "no backends", numbers(log), 3)
}

func TestDefaultSizeStays(t *testing.T) {
	s := service(10)
	log := advanced(model.Log{}, s, 0)
	for i, step := range []struct {
		backends int
		slots    uint32
	}{{11, 1021}, {20, 1021}, {21, 2111}, {15, 2111}, {11, 2111}, {10, 1021}} {
		s.Backends = service(step.backends).Backends
		at := time.Duration(i+1) * time.Hour
		log, _ = Trim(log, s, nil, nil, start.Add(at)) // nothing before is needed
		if log = advanced(log, s, at); log.Generations[0].Slots != step.slots {
			t.Errorf("with %d backends the ring has %d slots, want %d", step.backends, log.Generations[0].Slots, step.slots)
		}
	}
}

func TestResizeWaits(t *testing.T) {
	s := service(3)
	log := advanced(model.Log{}, s, 0)
	for weight := range uint16(2) {
		s.Backends[0].Weight = 1 + weight
		log = advanced(log, s, 0)
	}
	s.RingSize = 2003
	if again := advanced(log, s, 0); !reflect.DeepEqual(again, log) || Current(log, s) {
		t.Error("three generations, and another size does not wait")
	}
	s.Backends[0].Weight = 9
	log = advanced(log, s, 0)
	if g := log.Generations[0]; g.Number != 4 || g.Slots != 1021 || g.Members[0].Weight != 9 {
		t.Errorf("the change that need not wait is %v", g)
	}
	log, _ = Trim(log, s, nil, nil, start.Add(time.Hour))
	log = advanced(log, s, time.Hour)
	want(t, "resized", numbers(log), 5, 4)
	if log.Generations[0].Slots != 2003 || !Current(log, s) {
		t.Error("after drain the ring has not its size")
	}
	s.RingSize = 4001
	want(t, "two sizes", numbers(advanced(log, s, time.Hour)), 5, 4)
	log, _ = Trim(log, s, nil, nil, start.Add(2*time.Hour))
	want(t, "resized again", numbers(advanced(log, s, 2*time.Hour)), 6, 5)
}

// Generations that have placed connections on backups name twice as many in a slot.
func TestResizeWaitsForP2C(t *testing.T) {
	for name, test := range map[string]struct {
		policies []model.Policy // oldest first
		waits    bool
	}{
		"one":          {[]model.Policy{model.P2C}, false},
		"new":          {[]model.Policy{model.Maglev, model.Maglev}, false},
		"two":          {[]model.Policy{model.P2C, model.P2C}, true},
		"one of two":   {[]model.Policy{model.P2C, model.Maglev}, true},
		"other of two": {[]model.Policy{model.Maglev, model.P2C}, true},
	} {
		s := service(3)
		var log model.Log
		for i, policy := range test.policies {
			s.Policy, s.Backends[0].Weight = policy, uint16(1+i)
			log = advanced(log, s, 0)
		}
		s.RingSize, s.Policy = 2003, model.P2C
		if resized := advanced(log, s, 0).Generations[0].Slots == 2003; resized == test.waits {
			t.Errorf("%s: after generations with %v a change of size waits: %v", name, test.policies, !resized)
		}
	}
}

// A change of affinity waits as one of size does, and neither comes while the other's
// generations are there.
func TestAnotherAffinityWaits(t *testing.T) {
	s := service(3)
	log := advanced(model.Log{}, s, 0)
	for weight := range uint16(2) {
		s.Backends[0].Weight = 1 + weight
		log = advanced(log, s, 0)
	}
	s.Affinity = model.AffinitySourceIP
	if again := advanced(log, s, 0); !reflect.DeepEqual(again, log) || Current(log, s) {
		t.Error("three generations, and another affinity does not wait")
	}
	log, _ = Trim(log, s, nil, nil, start.Add(time.Hour))
	s.RingSize = 2003
	log = advanced(log, s, time.Hour)
	want(t, "other slots", numbers(log), 4, 3)
	if now, was := log.Generations[0], log.Generations[1]; now.Affinity != model.AffinitySourceIP || now.Slots != 2003 || was.Affinity != model.AffinityFlow || !Current(log, s) {
		t.Errorf("after drain the log is %v", log)
	}
	s.Affinity = model.AffinityFlow
	want(t, "two affinities", numbers(advanced(log, s, time.Hour)), 4, 3)
	s.Affinity, s.RingSize = model.AffinitySourceIP, 1021
	want(t, "another size with two affinities", numbers(advanced(log, s, time.Hour)), 4, 3)
	s.Backends[0].Weight = 9
	log = advanced(log, s, time.Hour)
	if g := log.Generations[0]; g.Number != 5 || g.Affinity != model.AffinitySourceIP || g.Slots != 2003 {
		t.Errorf("the change that need not wait is %v", g)
	}
}

func TestLogIsBounded(t *testing.T) {
	for _, test := range []struct {
		slots uint32
		most  int
	}{{1021, 256}, {65537, 63}, {400009, 10}, {model.MaxRingSize, 8}} {
		s := service(3)
		s.RingSize = test.slots
		var log model.Log
		for i := range 300 {
			s.Backends[0].Weight = uint16(1 + i)
			log = advanced(log, s, 0)
		}
		if len(log.Generations) != test.most {
			t.Errorf("a log of rings of %d slots has %d generations, want %d", test.slots, len(log.Generations), test.most)
		}
	}
}

// Going back and forth, however often, needs two generations.
func TestRepeatedGenerationsMakeRoom(t *testing.T) {
	s := service(3)
	var log model.Log
	for i := range 1000 {
		s.Backends[0].Weight = uint16(1 + i%3)
		log = advanced(log, s, 0)
		if !Current(log, s) {
			t.Fatalf("change %d waits", i)
		}
	}
	rings := map[string]bool{}
	for _, g := range log.Generations {
		rings[fmt.Sprint(g.Members)] = true
	}
	if len(rings) != 3 {
		t.Errorf("%d different rings are left of 3", len(rings))
	}
}
