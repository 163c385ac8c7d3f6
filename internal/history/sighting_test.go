package history

import (
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// sights is when directors last saw a connection of an older owner's, after the start.
type sights time.Duration

func (s sights) Reported(*model.Service) bool { return false }

func (s sights) Needed(*model.Service, *model.Generation, []model.Generation, time.Time) *model.SlotSet {
	panic("nobody reports")
}

func (s sights) Guessed(*model.Service) time.Time { return start.Add(time.Duration(s)) }

// weights appends a generation for each weight of the first backend.
func weights(log model.Log, s *model.Service, at time.Duration, list ...uint16) model.Log {
	for _, weight := range list {
		s.Backends[0].Weight = weight
		log = advanced(log, s, at)
	}
	return log
}

func wantDue(t *testing.T, log model.Log, s *model.Service, held Held, evidence Evidence, at, want time.Duration) {
	t.Helper()
	if due := Due(log, s, held, evidence, start.Add(at)); !due.Equal(start.Add(want)) {
		t.Errorf("a generation is due at %v, want %v", due.Sub(start), want)
	}
}

// The oldest generation stays until no connection of it was seen for drain, or until
// max-retention; those between it and the newest leave as they do when nobody looks.
func TestSeenGenerationStays(t *testing.T) {
	s := service(3)
	s.MaxRetention = model.Duration(time.Hour)
	log := weights(model.Log{}, s, 0, 10, 20)
	log = weights(log, s, 30*time.Second, 30)
	want(t, "nobody looks", trimmed(log, s, nil, nil, 2*time.Minute), 3)
	want(t, "seen lately", trimmed(log, s, nil, sights(90*time.Second), 2*time.Minute), 3, 1)
	want(t, "before drain", trimmed(log, s, nil, sights(-time.Hour), 59*time.Second), 3, 2, 1)
	want(t, "the next drain", trimmed(log, s, nil, sights(90*time.Second), 149*time.Second), 3, 1)
	want(t, "not seen for drain", trimmed(log, s, nil, sights(90*time.Second), 150*time.Second), 3)
	wantDue(t, log, s, nil, sights(10*time.Second), 60*time.Second, 70*time.Second)
	wantDue(t, log, s, nil, sights(-time.Hour), 0, time.Minute)
	stay, _ := Trim(log, s, nil, sights(90*time.Second), start.Add(2*time.Minute))
	if len(log.Generations) != 3 || stay.Generations[1].Kept != nil {
		t.Error("a generation of which connections were seen has lost slots")
	}
	wantDue(t, stay, s, nil, sights(100*time.Second), 2*time.Minute, 160*time.Second)
	wantDue(t, stay, s, nil, sights(59*time.Minute+30*time.Second), 59*time.Minute, time.Hour)
	_, left := Trim(stay, s, nil, sights(59*time.Minute+30*time.Second), start.Add(time.Hour))
	if len(left) != 1 || left[0].Number != 1 || left[0].Cause != Overdue {
		t.Errorf("there left %v, want generation 1 at max-retention", left)
	}
	_, left = Trim(stay, s, nil, sights(0), start.Add(time.Hour))
	if len(left) != 1 || left[0].Cause != Drained {
		t.Errorf("there left %v, want generation 1, drained", left)
	}
}

// Where the oldest generation has lost members, connections of its slots may be of the
// owners of a newer one, up to one that has lost no member.
func TestSeenGenerationsBehindTheGone(t *testing.T) {
	s := service(4)
	log := weights(model.Log{}, s, 0, 10, 20, 30)
	without := func(log model.Log) model.Log {
		log, _ = Trim(log, s, nil, nil, start)
		return advanced(log, s, 0)
	}
	all := s.Backends
	s.Backends = all[:3]
	log = without(log)
	want(t, "one is gone", numbers(log), 4, 3, 2, 1)
	log = weights(log, s, 0, 40, 50)
	want(t, "to the first that is whole", trimmed(log, s, nil, sights(time.Minute), 90*time.Second), 6, 4, 3, 2, 1)
	want(t, "not seen", trimmed(log, s, nil, sights(0), 90*time.Second), 6)
	s.Backends = all[3:]
	log = without(log)
	want(t, "the others are gone, and one has come back", trimmed(log, s, nil, sights(time.Minute), 90*time.Second), 7)
}

// A generation that waits for room in the log waits only for drain. A new size waits for what
// directors see.
func TestSeenGenerationsMakeRoom(t *testing.T) {
	s := service(3)
	seen := sights(time.Hour)
	log := weights(model.Log{}, s, 0, 10, 20)
	s.RingSize = 2003
	log = advanced(log, s, 0)
	log, _ = Trim(log, s, nil, seen, start.Add(time.Hour))
	want(t, "another size", numbers(log), 3, 1)
	s.RingSize = 4001
	wantDue(t, log, s, nil, seen, time.Hour, time.Hour+time.Minute)
	want(t, "a third size waits", trimmed(log, s, nil, seen, time.Hour), 3, 1)
	want(t, "until nothing is seen", trimmed(log, s, nil, seen, time.Hour+time.Minute), 3)
	s.RingSize = 2003
	wantDue(t, log, s, nil, seen, time.Hour, time.Hour+time.Minute)
	log = weights(log, s, time.Hour, 30)
	want(t, "weights need not wait", trimmed(log, s, nil, seen, time.Hour), 4, 3, 1)

	s = service(3)
	log = weights(model.Log{}, s, 0, 10, 20)
	s.RingSize = 2003
	want(t, "a size need not wait for what has drained", trimmed(log, s, nil, seen, time.Hour), 2, 1)

	s = service(3)
	s.RingSize = model.MaxRingSize // eight generations at most
	log = weights(model.Log{}, s, 0, 1, 2)
	log = weights(log, s, time.Hour, 3, 4, 5, 6, 7, 8)
	s.Backends[0].Weight = 9
	want(t, "a full log", trimmed(log, s, nil, sights(time.Hour), time.Hour+time.Second), 8, 7, 6, 5, 4, 3, 2)
}

// If slots are held only the oldest generation stays. A generation that places
// connections until the newest one's notice is over holds no slots.
func TestSeenGenerationsLeaveHeldSlots(t *testing.T) {
	s := service(4)
	log := weights(model.Log{}, s, 0, 10)
	s.Backends = s.Backends[:3]
	log, _ = Trim(log, s, nil, nil, start)
	log = advanced(log, s, 0)
	log = weights(log, s, 0, 20, 30)
	at, seen := 2*time.Minute, sights(time.Minute+30*time.Second)
	want(t, "nothing is held", trimmed(log, s, nil, seen, at), 4, 2, 1)
	want(t, "held at an older one", trimmed(log, s, Held{3: true}, seen, at), 4, 3, 1)
	wantDue(t, log, s, Held{3: true}, seen, at, time.Minute)
	next := advanced(log, service(3), at)
	next = Announce(next, log, time.Minute)
	want(t, "in the notice", trimmed(next, service(3), Held{4: true}, seen, at), 5, 4, 2, 1)
	want(t, "held in the notice", trimmed(next, service(3), Held{4: true, 3: true}, seen, at), 5, 4, 3, 1)
}
