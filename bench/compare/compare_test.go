package compare

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"weir.io/weir/lab/record"
)

// The made-up machine: every round has a speed of its own, which all subjects share.
type lab struct {
	random *rand.Rand
	rounds int
	wobble float64 // of the machine from round to round
}

func newLab(seed uint64) *lab {
	return &lab{random: rand.New(rand.NewPCG(seed, 1)), rounds: 9, wobble: 0.3}
}

// run is a record in which weir's throughput is speed times 8 Mpps, with noise of that
// standard deviation.
func (l *lab) run(speed, noise float64) *record.Record {
	r := &record.Record{Format: record.Format, Scenarios: []record.Scenario{{Name: "frames"}}}
	s := &r.Scenarios[0]
	for range l.rounds {
		moment := 1 + l.wobble*(l.random.Float64()-0.5)
		around := func() float64 { return moment * (1 + noise*l.random.NormFloat64()) }
		at := record.Conditions{"frame": "64", "flows": "1"}
		s.Add("redirect", record.Conditions{"frame": "64"}, record.Throughput, 10e6*moment)
		s.Add("l2dsr", at, record.Throughput, 8e6*speed*around())
		s.Add("nat", at, record.Throughput, 4e6*around())
	}
	return r
}

func TestTheSameRecordTwice(t *testing.T) {
	r := newLab(1).run(1, 0.05)
	result := Records(r, r)
	if len(result.Changes)+len(result.OnlyOld)+len(result.OnlyNew)+len(result.Warnings) > 0 || result.Compared != 3 {
		t.Errorf("a record differs from itself: %+v", result)
	}
}

func TestSlowerIsFound(t *testing.T) {
	l := newLab(2)
	result := Records(l.run(1, 0.05), l.run(0.8, 0.05))
	if len(result.Changes) != 1 {
		t.Fatalf("of 20 %% slower with 5 %% noise it found %+v, want l2dsr alone", result.Changes)
	}
	c := result.Changes[0]
	if c.Subject != "l2dsr" || c.Verdict != Slower || c.Reference != "redirect" || math.Abs(float64(c.Change)+0.2) > 0.04 {
		t.Errorf("found %+v, want l2dsr, 20 %% slower against redirect", c)
	}
	if err := result.NoneSlower(10); err == nil || err.Error() != "1 measurement is slower by more than 10 %" {
		t.Errorf("20 %% slower, and by more than 10 %%: %v", err)
	}
	if err := result.NoneSlower(30); err != nil {
		t.Errorf("20 %% slower, and by more than 30 %%: %v", err)
	}
	if faster := Records(l.run(0.8, 0.05), l.run(1, 0.05)); len(faster.Changes) != 1 || faster.Changes[0].Verdict != Faster {
		t.Errorf("the other way round it found %+v, want l2dsr to be faster", faster.Changes)
	}
}

func TestNoiseIsNotAChange(t *testing.T) {
	found := 0
	for seed := range uint64(100) {
		l := newLab(seed)
		found += len(Records(l.run(1, 0.15), l.run(0.97, 0.15)).Changes)
	}
	if found > 9 { // a test at 1 % is expected to find 3
		t.Errorf("3 %% with 15 %% noise was called a change in %d of 300 measurements", found)
	}
}

// Only the machine differs: without the reference everything would have changed.
func TestASlowMachineIsNotAChange(t *testing.T) {
	l := newLab(3)
	l.wobble = 0.02
	old, new := l.run(1, 0.02), l.run(1, 0.02)
	for _, m := range new.Scenarios[0].Measurements {
		for i := range m.Rounds {
			m.Rounds[i] /= 2
		}
	}
	result := Records(old, new)
	if len(result.Changes) != 1 || result.Changes[0].Subject != "redirect" {
		t.Errorf("found %+v, want the reference alone", result.Changes)
	}
	slower, references := result.Slower(0)
	if len(slower) != 0 || len(references) != 1 || result.NoneSlower(0) != nil {
		t.Errorf("%v are slower and of the references %v: the machine's reference must not count, nor be hidden", slower, references)
	}
}

func TestTooFewRounds(t *testing.T) {
	l := newLab(4)
	l.rounds = 4
	result := Records(l.run(1, 0.01), l.run(0.5, 0.01))
	if len(result.Changes) != 0 || len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "too few rounds") {
		t.Errorf("of 4 rounds it found %+v and warns %q", result.Changes, result.Warnings)
	}
	if err := result.NoneSlower(0); err == nil || !strings.Contains(err.Error(), "none of 3 measurements") {
		t.Errorf("half the speed in 4 rounds, of which nothing can be told: %v", err)
	}
	l.rounds = 5
	if result := Records(l.run(1, 0.01), l.run(0.5, 0.01)); len(result.Changes) != 1 {
		t.Errorf("of 5 rounds it found %+v, want l2dsr", result.Changes)
	}
}

func single(subject string, quantity record.Quantity, values ...float64) *record.Record {
	r := &record.Record{Format: record.Format, Scenarios: []record.Scenario{{Name: "churn"}}}
	for _, value := range values {
		r.Scenarios[0].Add(subject, nil, quantity, value)
	}
	return r
}

func TestFromNothing(t *testing.T) {
	lost := record.Quantity{Name: "lost", Unit: "packet", Better: record.Lower}
	result := Records(single("swap", lost, 0, 0, 0, 0, 0, 0), single("swap", lost, 3, 4, 5, 6, 7, 8))
	if len(result.Changes) != 1 || result.Changes[0].Verdict != Slower || result.Changes[0].percent() != "?" {
		t.Errorf("found %+v, want that packets are lost now", result.Changes)
	}
	if _, err := json.Marshal(result); err != nil {
		t.Error("the result is no JSON:", err)
	}
}

func TestMissingRoundsAreLeftOut(t *testing.T) {
	size := record.Quantity{Name: "size", Unit: "B"}
	result := Records(single("ring", size, 1, 2, 1, 2, 1, 2), single("ring", size, 8, math.NaN(), 9, 8, math.Inf(1), 9, 8))
	if len(result.Changes) != 1 || result.Changes[0].Verdict != Changed || result.Changes[0].New.Median != 8 {
		t.Errorf("found %+v, want the change of what was measured", result.Changes)
	}
}

func TestWhatOnlyOneHas(t *testing.T) {
	old, new := single("nat", record.Cost, 1, 2), single("gue", record.Cost, 1, 2)
	new.Scenarios = append(new.Scenarios, record.Scenario{Name: "imix"})
	old.Machine.Kernel, new.Machine.Kernel = "6.1", "6.12"
	old.Machine.CPU = "another"
	var text bytes.Buffer
	if err := Records(old, new).Print(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"the machine differs: another with 0 cores", "the kernel differs: 6.1, then 6.12",
		"none changed", "Only in the old record:\n- churn: cost of nat\n", "Only in the new record:\n- churn: cost of gue\n- imix\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("it does not print %q:\n%s", want, &text)
		}
	}
}

func TestPrint(t *testing.T) {
	l := newLab(2)
	var text bytes.Buffer
	if err := Records(l.run(1, 0.05), l.run(0.8, 0.05)).Print(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Of 3 measurements 1 changed", "slower", "l2dsr", "flows=1 frame=64", " x redirect"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("it does not print %q:\n%s", want, &text)
		}
	}
}
