package desired

import (
	"reflect"
	"slices"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// ledger is a change of a store that writes logs. The store may make it several times:
// each time begins from nothing, and the last one counts.
type ledger struct {
	make func(*ledger, store.State) (store.State, error)
	held func(store.Document) history.Held

	now  time.Time
	left []departure
}

// departure is a generation that has left the log of a service.
type departure struct {
	service string
	history.Departure
}

func (l *ledger) change(s store.State) (store.State, error) {
	l.now, l.left = time.Now(), nil
	return l.make(l, s)
}

// successor returns the log of a service that takes the place of a document: what no
// connection needs any more goes out, and what the service has become comes in.
func (l *ledger) successor(before store.Document, s *model.Service) model.Log {
	log, left := history.Trim(before.Log, s, l.held(before), nil, l.now)
	next := history.Advance(log, s, l.now)
	for _, g := range log.Generations {
		if !slices.ContainsFunc(next.Generations, func(n model.Generation) bool { return n.Number == g.Number }) {
			left = append(left, history.Departure{Generation: g, Cause: history.Repeated})
		}
	}
	for _, d := range left {
		l.left = append(l.left, departure{s.Name, d})
	}
	return next
}

// replace returns the change that makes services the whole of an owner's set.
func (k *Keeper) replace(owner string, services []model.Service) *ledger {
	return &ledger{held: k.heldNow(), make: func(l *ledger, s store.State) (store.State, error) {
		before := make(map[model.ServiceID]store.Document, len(s.Sets[owner].Documents))
		for _, d := range s.Sets[owner].Documents {
			before[d.Service.ID()] = d
		}
		return store.Replace(owner, services, func(_ model.Log, s model.Service) model.Log {
			return l.successor(before[s.ID()], &s)
		})(s)
	}}
}

// trim returns the change that brings the logs up to date of which a generation is due
// to leave. Who comes second finds nothing to do.
func (k *Keeper) trim() *ledger {
	return &ledger{held: k.heldNow(), make: func(l *ledger, s store.State) (store.State, error) {
		return store.Trim(func(log model.Log, s model.Service) model.Log {
			if due := history.Due(log, &s, nil); due.IsZero() || l.now.Before(due) {
				return log
			}
			return l.successor(store.Document{Service: s, Log: log}, &s)
		})(s)
	}}
}

// heldNow returns what tells the generations that place connections though newer ones
// have replaced them: by what this director forwards, and by what others do that have
// the log already. It is called with the lock held.
func (k *Keeper) heldNow() func(store.Document) history.Held {
	applied := k.applied
	return func(d store.Document) history.Held {
		held := history.Held{}
		for number := range k.engine.Held(d.Service.ID()) {
			held[number] = true
		}
		if !sameLog(d.Log, applied[d.Service.ID()]) {
			for _, number := range engine.HeldAt(&d.Service, d.Log) {
				held[number] = true
			}
		}
		return held
	}
}

// sameLog is quick for a log and itself.
func sameLog(a, b model.Log) bool {
	if len(a.Generations) != len(b.Generations) {
		return false
	}
	return len(a.Generations) == 0 || &a.Generations[0] == &b.Generations[0] || reflect.DeepEqual(a, b)
}
