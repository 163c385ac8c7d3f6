package policies

import (
	"bytes"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/bench/sim"
	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/record"
)

func smoke(t *testing.T) *record.Record {
	t.Helper()
	r, err := Study{Settings: record.Settings{Rounds: 1, Seed: 1, Smoke: true}}.Run(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func encoded(t *testing.T, r *record.Record) string {
	t.Helper()
	var text bytes.Buffer
	if err := r.Encode(&text); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// All scenarios have results, and the same seed gives the same results.
func TestSameSeedSameRecord(t *testing.T) {
	a, b := smoke(t), smoke(t)
	if encoded(t, a) != encoded(t, b) {
		t.Error("two runs with the same seed differ")
	}
	for _, name := range Names() {
		s := a.Scenario(name)
		if s == nil || len(s.Measurements) == 0 {
			t.Errorf("there is nothing of %s", name)
			continue
		}
		for _, m := range s.Measurements {
			for _, v := range m.Rounds {
				if !record.Number(v).Finite() || v < 0 {
					t.Errorf("%s: %s of %s (%s) is %v", name, m.Quantity.Name, m.Subject, m.Conditions, v)
				}
			}
		}
	}
	if _, err := record.Decode([]byte(encoded(t, a))); err != nil {
		t.Errorf("the record cannot be read: %v", err)
	}
}

// What must move: the shares of new backends, or those that others lose.
func TestLeast(t *testing.T) {
	want := map[string]float64{"add 1": 1.0 / 21, "remove 1": 1.0 / 20, "add 10 %": 2.0 / 22, "replace 10 %": 0.1, "drain 10 %": 0.1,
		"halve 10 %": 0.1 - 0.05/0.95}
	for _, c := range changes {
		before := backendsFrom(0, 20)
		after := c.apply(before, rand.New(rand.NewPCG(1, 1)))
		if got := least(before, after); math.Abs(got-want[c.name]) > 1e-12 {
			t.Errorf("%s: at least %v moves, want %v", c.name, got, want[c.name])
		}
	}
}

// A change moves as much as it must, and little more. The shared slots include those that have
// moved away from backends that still exist. The ring alone agrees with the rows.
func TestChanges(t *testing.T) {
	for _, c := range changes {
		random := func() *rand.Rand { return rand.New(rand.NewPCG(2, 0)) }
		o, least, err := c.after(50, random(), engine.NewPlanner())
		if err != nil {
			t.Fatal(err)
		}
		const step = 0.01 // of shares in a ring of this size
		if o.moved < least-step || o.moved > 2*least+0.06 {
			t.Errorf("%s: %.4f of the slots move, and %.4f must", c.name, o.moved, least)
		}
		if strings.HasPrefix(c.name, "add") && o.lists < o.moved {
			t.Errorf("%s: %.4f of the slots move, and only %.4f are shared", c.name, o.moved, o.lists)
		}
		if o.held != 0 {
			t.Errorf("%s: %.4f of the slots are held after one change", c.name, o.held)
		}
		if moved, _ := c.ringAlone(50, random()); moved != o.moved {
			t.Errorf("%s: %.4f of the slots of the ring move, and %.4f of the rows", c.name, moved, o.moved)
		}
	}
}

func TestRingBytes(t *testing.T) {
	r := &model.Ring{Slots: make([]model.Slot, 1021), Lists: make([]model.CandidateList, 3)}
	if got := ringBytes(r); got != 64*(1+128+3) {
		t.Errorf("a ring of 1,021 slots with 3 lists takes %d bytes", got)
	}
}

// RFC 2992, section 3: with many next hops, half of the flows move if the one at the end leaves,
// and a quarter if it is in the middle; the mean over all is a third.
func TestThreshold(t *testing.T) {
	if got := thresholdMoves(2); got != 0.5 {
		t.Errorf("of two directors one leaves, and %v of the flows move", got)
	}
	if got := thresholdMoves(1000); math.Abs(got-1.0/3) > 0.001 {
		t.Errorf("of 1,000 directors one leaves, and %v of the flows move", got)
	}
}

// Every policy that can be simulated is in the overview.
func TestOverviewIsComplete(t *testing.T) {
	var named []string
	for _, s := range statuses {
		named = append(named, s.policy)
	}
	all := sim.Policies()
	slices.Sort(named)
	slices.Sort(all)
	if !slices.Equal(named, all) {
		t.Errorf("the overview has %q, there are %q", named, all)
	}
}
