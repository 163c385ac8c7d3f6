package engine

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// A director that learns of a generation within the notice names all backends that
// other directors place connections on by then.
func TestNoticeIsForThoseWhoLag(t *testing.T) {
	const lag, pace = 2, time.Second
	strangers := func(notice time.Duration) (placed, unknown int) {
		for seed := range uint64(30) {
			r := rand.New(rand.NewPCG(7, seed))
			l := newLife(t, r)
			l.service.RingSize, l.notice = 101, notice
			var revisions []model.Log
			for step := range 40 {
				l.addOrWeigh()
				l.advance()
				l.now = l.now.Add(pace)
				revisions = append(revisions, l.log)
				if step < lag {
					continue
				}
				now, _ := Plan(config(l.service), Logs{l.service.ID(): asOf(l.log, l.now)}, nil)
				late, _ := Plan(config(l.service), Logs{l.service.ID(): asOf(revisions[step-lag], l.now)}, nil)
				for slot := range now.Services[0].Ring.Slots {
					row := late.Services[0].Ring.Row(slot)
					if len(row)+2 > l.bound() {
						continue // there was no room for the backends that come
					}
					placed++
					if !slices.Contains(row, now.Services[0].Ring.Row(slot)[0]) {
						unknown++
					}
				}
			}
		}
		return placed, unknown
	}
	if placed, unknown := strangers((lag + 1) * pace); placed < 50000 || unknown > 0 {
		t.Errorf("%d of %d slots place connections on somebody whom a director does not know that is %d changes behind", unknown, placed, lag)
	}
	if placed, unknown := strangers(0); unknown < placed/20 {
		t.Errorf("without notice only %d of %d slots do: this test shows nothing", unknown, placed)
	}
}

// addOrWeigh changes rings and no size, and nobody leaves.
func (l *lifeOfAService) addOrWeigh() {
	s := &l.service
	s.Backends = slices.Clone(s.Backends)
	if l.r.IntN(2) == 0 {
		l.add()
		return
	}
	b := &s.Backends[l.r.IntN(len(s.Backends))]
	b.Weight = uint16(l.r.IntN(5) * 50)
}

// If the owner is removed, its successor places connections at once.
func TestNoticeIsNotForTheDead(t *testing.T) {
	before := web(3)
	before.RingSize = 101
	begin := time.Unix(0, 0)
	log := history.Advance(model.Log{}, &before, begin)
	after := before
	after.Backends = append(slices.Clone(before.Backends[1:]), web(5).Backends[3:]...)
	log = history.Announce(history.Advance(log, &after, begin), log, time.Minute)
	owners := func(s model.Service, log model.Log) (first []string) {
		table, _ := Plan(config(s), Logs{s.ID(): log}, nil)
		for slot := range table.Services[0].Ring.Slots {
			first = append(first, s.Backends[table.Services[0].Ring.Row(slot)[0]].Address.String())
		}
		return first
	}
	was := owners(before, model.Log{Generations: log.Generations[1:]})
	is := owners(after, asOf(log, begin))
	will := owners(after, asOf(log, begin.Add(time.Minute)))
	moved, moves := 0, 0
	for slot := range was {
		want := was[slot]
		if want == before.Backends[0].Address.String() {
			want = will[slot]
			moved++
		}
		if is[slot] != want {
			t.Errorf("slot %d, which was of %s and will be of %s, is of %s", slot, was[slot], will[slot], is[slot])
		}
		if is[slot] != will[slot] {
			moves++
		}
	}
	if moved == 0 || moves == 0 {
		t.Errorf("%d slots have moved, and %d will", moved, moves)
	}
}
