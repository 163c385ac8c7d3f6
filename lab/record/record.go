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
	"maps"
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
