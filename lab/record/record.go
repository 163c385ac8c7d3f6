// Package record is the record of one run of the benchmarks: the machine, the settings and every
// single value, so that medians, spreads, ratios, tables and figures can be made from it later, and
// two runs can be compared.
//
// A file holds one JSON object:
//
//	{
//	  "format": 1,
//	  "started": "2026-01-02T03:04:05Z",
//	  "commit": "abc1234",                  git describe --always --dirty
//	  "machine": {...},                     cpu, cores, kernel, mitigations, tools, ...
//	  "settings": {"rounds": 5, "sampleNanoseconds": 250000000, "smoke": false},
//	  "scenarios": [{
//	    "name": "flows", "what": "...", "seconds": 61.5, "notes": ["..."],
//	    "error": "...",                     only where it ended with one
//	    "measurements": [{
//	      "subject": "l2dsr",
//	      "conditions": {"flows": "1000", "frame": "64"},
//	      "quantity": {"name": "throughput", "unit": "packet/s", "better": "higher"},
//	      "rounds": [8123456.7, 8098765.4]  one value a round, null where it is missing
//	    }]
//	  }],
//	  "checks": [{
//	    "name": "...", "what": "...", "value": 0.83, "unit": "",
//	    "relation": ">=", "target": 0.8, "ok": true,
//	    "note": "...",                      only where there is no verdict: why
//	    "scenario": "flows", "quantity": "throughput"
//	  }]
//	}
//
// Values at the same place in the rounds of two measurements of a scenario are of the same round.
// Readers refuse other formats and unknown keys.
package record

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Format is the version of the file's form. Readers refuse others.
const Format = 1

// Record is one run.
type Record struct {
	Format    int        `json:"format"`
	Started   time.Time  `json:"started"`
	Commit    string     `json:"commit"` // "-dirty" is appended if the tree had changes
	Machine   Machine    `json:"machine"`
	Settings  Settings   `json:"settings"`
	Scenarios []Scenario `json:"scenarios"`
	Checks    []Check    `json:"checks"`
}

// Machine is where the run took place.
type Machine struct {
	CPU         string            `json:"cpu"`
	Cores       int               `json:"cores"`
	MemoryBytes uint64            `json:"memoryBytes"`
	Kernel      string            `json:"kernel"` // uname -r
	Arch        string            `json:"arch"`
	Go          string            `json:"go"`
	JIT         bool              `json:"jit"`         // of BPF
	Mitigations map[string]string `json:"mitigations"` // /sys/devices/system/cpu/vulnerabilities
	Tools       map[string]string `json:"tools"`       // versions of what weir was compared with
	Latencies   []Latency         `json:"latencies,omitempty"`
}

// Latency is how long a read takes, of that many bytes read in random order, when the run began.
type Latency struct {
	Bytes       uint64  `json:"bytes"`
	Nanoseconds float64 `json:"nanoseconds"`
}

// Settings say how long and how often was measured.
type Settings struct {
	Rounds int           `json:"rounds"`
	Sample time.Duration `json:"sampleNanoseconds"` // for one subject in one round
	Smoke  bool          `json:"smoke"`             // only shows that the harness works
	Seed   uint64        `json:"seed,omitempty"`    // of the first round, where rounds are simulated
}

// Scenario is one question and all that was measured to answer it.
type Scenario struct {
	Name         string         `json:"name"`
	What         string         `json:"what"` // one sentence
	Seconds      float64        `json:"seconds"`
	Error        string         `json:"error,omitempty"` // ended it: what was measured until then is not trusted
	Notes        []string       `json:"notes,omitempty"` // what a reader of the figures must know
	Measurements []*Measurement `json:"measurements"`
}

// Conditions are the conditions of a measurement: "frame": "64". A value that is a number can be
// the axis of a figure.
type Conditions map[string]string

// Better says which way a quantity improves.
type Better string

// The ways.
const (
	Higher  Better = "higher"
	Lower   Better = "lower"
	Neither Better = "" // for information
)

// Quantity is what was measured.
type Quantity struct {
	Name   string `json:"name"` // throughput, cost, latency-p99
	Unit   string `json:"unit"` // packet/s, ns, ms, B, 1
	Better Better `json:"better,omitempty"`
}

// The quantities that several scenarios measure.
var (
	Throughput = Quantity{"throughput", "packet/s", Higher}
	Cost       = Quantity{"cost", "ns", Lower} // the balancer's own time per packet
)

// Measurement is one quantity of one subject under one set of conditions. Values with the same
// index in the rounds of two measurements of a scenario are of the same round: they were taken one
// after the other.
type Measurement struct {
	Subject    string     `json:"subject"` // l2dsr, redirect, iptables
	Conditions Conditions `json:"conditions"`
	Quantity   Quantity   `json:"quantity"`
	Rounds     Values     `json:"rounds"`
}

// Add appends a round's value, to a new measurement if it is the first value.
func (s *Scenario) Add(subject string, at Conditions, quantity Quantity, value float64) {
	m := s.Find(subject, at, quantity.Name)
	if m == nil {
		m = &Measurement{Subject: subject, Conditions: maps.Clone(at), Quantity: quantity}
		s.Measurements = append(s.Measurements, m)
	}
	m.Rounds = append(m.Rounds, value)
}

// Find returns the measurement with that subject, quantity and exactly those conditions, or nil.
func (s *Scenario) Find(subject string, at Conditions, quantity string) *Measurement {
	for _, m := range s.Measurements {
		if m.Subject == subject && m.Quantity.Name == quantity && maps.Equal(m.Conditions, at) {
			return m
		}
	}
	return nil
}

// Scenario returns the scenario of that name, or nil when it did not run.
func (r *Record) Scenario(name string) *Scenario {
	for i := range r.Scenarios {
		if r.Scenarios[i].Name == name {
			return &r.Scenarios[i]
		}
	}
	return nil
}

// Number is a value that may be missing: NaN, or infinite. JSON cannot express these, so they are
// written as null, and null is read as NaN.
type Number float64

// Values are numbers, in the order of the rounds.
type Values []float64

// Finite is whether there is a value.
func (n Number) Finite() bool {
	return !math.IsNaN(float64(n)) && !math.IsInf(float64(n), 0)
}

// MarshalJSON writes null for a missing value.
func (n Number) MarshalJSON() ([]byte, error) {
	if !n.Finite() {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// UnmarshalJSON reads a number or null.
func (n *Number) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		*n = Number(math.NaN())
		return nil
	}
	return json.Unmarshal(data, (*float64)(n))
}

// MarshalJSON writes the numbers as a list, null for missing values.
func (v Values) MarshalJSON() ([]byte, error) {
	numbers := make([]Number, len(v))
	for i, value := range v {
		numbers[i] = Number(value)
	}
	return json.Marshal(numbers)
}

// UnmarshalJSON reads a list of numbers and nulls.
func (v *Values) UnmarshalJSON(data []byte) error {
	var numbers []Number
	if err := json.Unmarshal(data, &numbers); err != nil {
		return fmt.Errorf("rounds: %w", err)
	}
	*v = make(Values, len(numbers))
	for i, number := range numbers {
		(*v)[i] = float64(number)
	}
	return nil
}

// Median returns the middle of the values, NaN if there are none. It does not change them.
func Median(values []float64) float64 {
	return Quantile(values, 0.5)
}

// Quantile returns the value below which that part of the values is, interpolated linearly between
// neighbors. It is NaN if there are none or one is missing: a median of the rounds that went well
// would flatter.
func Quantile(values []float64, part float64) float64 {
	if len(values) == 0 || slices.ContainsFunc(values, math.IsNaN) {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := part * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}

// Rank sorts the values, of which there must be one, and returns the least that is not less than that
// many percent of them.
func Rank[T cmp.Ordered](values []T, percent int) T {
	slices.Sort(values)
	return values[(len(values)*percent+99)/100-1]
}

// Ratios divides round by round, which cancels the machine's slow moments: they affect both values
// of a round. Rounds that only one measurement has are left out.
func Ratios(of, to *Measurement) []float64 {
	if of == nil || to == nil {
		return nil
	}
	ratios := make([]float64, 0, len(of.Rounds))
	for i := range min(len(of.Rounds), len(to.Rounds)) {
		if to.Rounds[i] != 0 {
			ratios = append(ratios, of.Rounds[i]/to.Rounds[i])
		}
	}
	return ratios
}

// references are the subjects that the others are compared with, by the first one that a scenario
// has: only handing the packet on, the least that a forwarder can do, and no balancer at all.
var references = []string{"redirect", "reflect", "swap", "direct"}

// References returns the subjects that others are compared with: the first one that a scenario has
// counts.
func References() []string { return slices.Clone(references) }

// IsReference is whether others are compared with that subject.
func IsReference(subject string) bool { return slices.Contains(references, subject) }

// Reference returns the measurement that m is compared with: the same quantity under the same
// conditions, or, where the reference knows fewer of them (a bare redirect has no backends), under
// those that it shares. Nil if there is none.
func (s *Scenario) Reference(m *Measurement) *Measurement {
	if IsReference(m.Subject) {
		return nil
	}
	for _, subject := range references {
		if found := s.Nearest(subject, m.Conditions, m.Quantity.Name); found != nil {
			return found
		}
	}
	return nil
}

// Nearest returns that subject's measurement whose conditions are all among the given ones; if
// there are several, the one with the most conditions; nil if there is none.
func (s *Scenario) Nearest(subject string, at Conditions, quantity string) *Measurement {
	var best *Measurement
	for _, m := range s.Measurements {
		if m.Subject == subject && m.Quantity.Name == quantity && m.Conditions.HoldIn(at) &&
			(best == nil || len(m.Conditions) > len(best.Conditions)) {
			best = m
		}
	}
	return best
}

// HoldIn is whether all of these conditions are among the others.
func (c Conditions) HoldIn(other Conditions) bool {
	for key, value := range c {
		if other[key] != value {
			return false
		}
	}
	return true
}

// Words returns the conditions in the order of their names: flows=1, frame=64.
func (c Conditions) Words() (words []string) {
	for _, key := range slices.Sorted(maps.Keys(c)) {
		words = append(words, key+"="+c[key])
	}
	return words
}

// String writes the conditions: "flows=1 frame=64".
func (c Conditions) String() string { return strings.Join(c.Words(), " ") }
