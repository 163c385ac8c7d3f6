package model

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func slotSet(size int, numbers ...int) *SlotSet {
	s := NewSlotSet(size)
	for _, n := range numbers {
		s.Add(n)
	}
	return s
}

func TestSlotSetText(t *testing.T) {
	for text, want := range map[string]*SlotSet{
		`"1021 gaps "`:      slotSet(1021),
		`"1021 gaps BQA"`:   slotSet(1021, 5, 6),
		`"1021 gaps /Ac"`:   slotSet(1021, 1020),
		`"9 bits AQE"`:      slotSet(9, 0, 8),
		`"3 bits Bw"`:       slotSet(3, 0, 1, 2),
		`"64 gaps Pw"`:      slotSet(64, 63),
		`"128 gaps AEAAAA"`: slotSet(128, 0, 65, 66, 67),
	} {
		var read SlotSet
		if err := json.Unmarshal([]byte(text), &read); err != nil || !read.Equal(want) {
			t.Errorf("%s is read as %v, error %v; want %v", text, read, err, want)
		}
		if got, err := json.Marshal(want); err != nil || string(got) != text {
			t.Errorf("%v is written as %s, error %v; want %s", want, got, err, text)
		}
	}
}

func TestSlotSetTextRefused(t *testing.T) {
	for text, problem := range map[string]string{
		"":                    "want a size",
		"1021 gaps":           "want a size",
		"0 gaps ":             "not a size",
		"-5 gaps ":            "not a size",
		"9999999999999 gaps ": "not a size",
		"8 ranges AA":         "neither bits nor gaps",
		"8 bits A":            "illegal base64",
		"8 bits AAA":          "2 bytes are not the bits of 8 numbers",
		"3 bits CA":           "beyond",
		"8 gaps CA":           "beyond",
		"8 gaps BwA":          "beyond",
		"8 gaps gA":           "ends in the middle",
	} {
		var read SlotSet
		if err := read.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%q is read with error %v, want one with %q", text, err, problem)
		}
	}
}

func TestSlotSetsOfAllKinds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		size := 1 + r.IntN(3000)
		a, b := NewSlotSet(size), NewSlotSet(size)
		share := r.Float64() * r.Float64()
		for i := range size {
			if r.Float64() < share {
				a.Add(i)
			}
			if r.Float64() < share {
				b.Add(i)
			}
		}
		for _, s := range []*SlotSet{a, a.And(b), a.Or(b), a.Halved()} {
			if s.Size() == 0 {
				continue
			}
			text, err := s.MarshalText()
			if err != nil {
				t.Fatal(err)
			}
			var again SlotSet
			if err := again.UnmarshalText(text); err != nil || !again.Equal(s) {
				t.Fatalf("%s is read as something else, error %v", text, err)
			}
			if len(text) > 20+(size+5)/6*4/4+3 {
				t.Fatalf("%d of %d numbers take %d bytes", s.Count(), size, len(text))
			}
		}
		both, either := 0, 0
		for i := range size {
			if a.Has(i) && b.Has(i) {
				both++
			}
			if a.Has(i) || b.Has(i) {
				either++
			}
			if a.Has(i) && !a.Halved().Has(i/2) && i/2 < size/2 {
				t.Fatalf("%d is lost in half the size", i)
			}
			if size > 300 && i > 20 {
				break
			}
		}
		if size <= 300 && (a.And(b).Count() != both || a.Or(b).Count() != either) {
			t.Fatal("and and or count otherwise")
		}
		if !a.And(b).Within(a) || !a.Within(a.Or(b)) || !a.Within(nil) || (*SlotSet)(nil).Within(a) {
			t.Fatal("what is within what is not told")
		}
	}
	if !(*SlotSet)(nil).Has(7) || slotSet(8, 7).Has(8) || slotSet(8, 7).HasAny(0, 6) || !slotSet(8, 7).HasAny(3, 7) {
		t.Error("membership is told wrong")
	}
}

// A connection is found in its slot, whatever the sizes of ring and report.
func TestReportCoversSlots(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		report := ReportedService{Used: NewSlotSet(1 << r.IntN(15))}
		slots := []uint32{3, 53, 1021, 2003, 65537, MaxRingSize}[r.IntN(6)]
		hash := r.Uint64()
		switch r.IntN(8) {
		case 0:
			hash = 0
		case 1:
			hash = 1<<64 - 1
		}
		report.Note(hash)
		slot := uint32(hash >> 32 * uint64(slots) >> 32)
		if !report.UsedIn(slot, slots) {
			t.Fatalf("a connection with hash %#x is not in slot %d of %d by a report with %d ranges", hash, slot, slots, report.Used.Size())
		}
	}
	s := Service{Backends: make([]Backend, 3)}
	fine := ReportedService{Used: NewSlotSet(s.ReportRanges())}
	fine.Note(1 << 63)
	var used []uint32
	for slot := range uint32(1021) {
		if fine.UsedIn(slot, 1021) {
			used = append(used, slot)
		}
	}
	if len(used) > 2 || !slices.Contains(used, 510) {
		t.Errorf("one connection is in slots %v", used)
	}
	for backends, want := range map[int]int{0: 1 << 14, 10: 1 << 14, 11: 1 << 15, 1000: 1 << 20, 100000: 1 << 20} {
		if s := (Service{Backends: make([]Backend, backends)}); s.ReportRanges() != want {
			t.Errorf("with %d backends a report has %d ranges, want %d", backends, s.ReportRanges(), want)
		}
	}
}
