package desired

import (
	"errors"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// given returns documents whose log has so many generations, each a second after the one
// before, which are announced: what somebody writes for several directors.
func givenDocuments(generations int, notice time.Duration) []model.Document {
	var d model.Document
	for n := 1; n <= generations; n++ {
		s := beside(n)[0]
		before, now := d.Log, time.Now().Add(time.Duration(n-generations)*time.Second)
		d = model.Document{Service: s, Log: history.Announce(history.Advance(before, &s, now), before, notice)}
	}
	return []model.Document{d}
}

// Logs that are given are used as they are, also after the time at which a director's own
// ones are trimmed and by the next process, until others are given.
func TestGivenLogsStay(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, dir string) {
		d.set(t, web("a", 2))
		documents := givenDocuments(3, 5*time.Second)
		id := documents[0].Service.ID()
		for range 2 { // the second time nothing is to do
			if _, err := d.Give(t.Context(), "kube.edge.0", documents); err != nil {
				t.Fatal(err)
			}
		}
		d.sink.want(t, "a", "a b")
		log, _ := d.Log(id)
		if len(log.Generations) != 3 || log.Coming != 2 {
			t.Errorf("after it was given the log is %+v", log)
		}
		pass(time.Hour)
		if log, _ = d.Log(id); log.Coming != 0 || !slices.EqualFunc(log.Generations, documents[0].Log.Generations, func(a, b model.Generation) bool { return a.Number == b.Number }) {
			t.Errorf("after an hour the log is %+v, want the generations of %+v, all of which place connections", log, documents[0].Log)
		}
		refused := (*RefusedError)(nil)
		if _, err := d.Edit(t.Context(), "kube.edge.0", func(s []model.Service) []model.Service { return s }); !errors.As(err, &refused) || !refused.Conflict {
			t.Errorf("services of it are changed here, with error %v", err)
		}
		d.stop()
		next := start(t, dir, nil)
		defer next.stop()
		next.set(t, web("a", 2))
		pass(time.Hour)
		if log, _ = next.Log(id); len(log.Generations) != 3 || log.Generations[0].Number != 3 {
			t.Errorf("the next process has the log %+v", log)
		}
		shorter := givenDocuments(1, 0)
		if change, err := next.Give(t.Context(), "kube.edge.0", shorter); err != nil || len(change.Changed) != 1 {
			t.Errorf("others are given: %+v, %v", change, err)
		}
		if log, _ = next.Log(id); len(log.Generations) != 1 {
			t.Errorf("after that the log is %+v", log)
		}
		// An ordinary set takes it over, and its logs with it.
		if _, err := next.Put(t.Context(), "kube.edge.0", beside(4), model.SetCondition{}); err != nil {
			t.Fatal(err)
		}
		pass(time.Hour)
		if log, _ = next.Log(id); len(log.Generations) != 1 || log.Generations[0].Number != 2 {
			t.Errorf("after it was put without logs the log is %+v", log)
		}
	})
}

// A given set must not take what other owners have, and the file cannot be given.
func TestGivenSetsAreRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		d.set(t, web("a", 2))
		mine := givenDocuments(1, 0)
		mine[0].Service.VIP = config(web("a", 1)).Services[0].VIP
		for owner, documents := range map[string][]model.Document{"kube": mine, store.OwnerFile: nil} {
			refused := (*RefusedError)(nil)
			if _, err := d.Give(t.Context(), owner, documents); !errors.As(err, &refused) || !refused.Conflict {
				t.Errorf("owner %s gives %d documents, with error %v", owner, len(documents), err)
			}
		}
		d.sink.want(t, "a")
	})
}
