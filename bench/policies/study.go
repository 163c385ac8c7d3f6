// Package policies asks the simulator which policy to take, and weir's own rings what changes cost
// in sizes for which no lab has the machines. It writes its findings as a record of scenarios, and
// the document docs/results/policies.md from such a record.
package policies

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"weir.io/weir/lab/record"
)

// Study is what to simulate, and how thoroughly.
type Study struct {
	Settings record.Settings // Sample means nothing
	Only     []string        // the scenarios by name; nil: all
}

// scenario is one question. Each has a file of its own.
type scenario struct {
	name  string
	what  string // one sentence
	notes []string
	ask   func(*asking) error
}

func scenarios() []scenario {
	return []scenario{
		{"latency", "How long requests take by load, by policy and by how unequal requests are.", latencyNotes, askLatency},
		{"directors", "How long requests take by the number of directors that do not know of each other.", directorsNotes, askDirectors},
		{"staleness", "How long requests take by how often servers report what they have.", stalenessNotes, askStaleness},
		{"scale", "How long requests take in clusters beyond any lab.", scaleNotes, askScale},
		{"weights", "How long requests take on servers of different speed.", weightsNotes, askWeights},
		{"open", "How evenly connections are spread that stay open.", openNotes, askOpen},
		{"moves", "How many slots move when backends change.", movesNotes, askMoves},
		{"routes", "How many flows come to another director when one of them leaves.", routesNotes, askRoutes},
		{"state", "How much a director has to remember after a change.", stateNotes, askState},
	}
}

// Names returns the names of all scenarios.
func Names() []string {
	var names []string
	for _, s := range scenarios() {
		names = append(names, s.name)
	}
	return names
}

// asking is a scenario that is running.
type asking struct {
	context  context.Context
	settings record.Settings
	into     *record.Scenario
	count    *int // of events that were simulated
}

// Merge puts the scenarios of a record in their places in another record with the same settings.
func Merge(into, from *record.Record) error {
	if into.Settings != from.Settings {
		return fmt.Errorf("scenarios of %+v do not go with those of %+v: simulate all of them", from.Settings, into.Settings)
	}
	var all []record.Scenario
	for _, name := range Names() {
		if s := from.Scenario(name); s != nil {
			all = append(all, *s)
		} else if s := into.Scenario(name); s != nil {
			all = append(all, *s)
		}
	}
	into.Scenarios, into.Started, into.Commit = all, from.Started, from.Commit
	into.Checks = Judge(into)
	return nil
}

// Run runs the study. It reports progress, and how many events a second it simulated.
func (s Study) Run(ctx context.Context, progress io.Writer) (*record.Record, error) {
	r := &record.Record{Format: record.Format, Settings: s.Settings, Scenarios: []record.Scenario{}, Checks: []record.Check{}}
	for _, name := range s.Only {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("there is no scenario %q, but %q", name, Names())
		}
	}
	for _, one := range scenarios() {
		if len(s.Only) > 0 && !slices.Contains(s.Only, one.name) {
			continue
		}
		into := record.Scenario{Name: one.name, What: one.what, Notes: one.notes, Measurements: []*record.Measurement{}}
		began, events := time.Now(), 0
		a := &asking{context: ctx, settings: s.Settings, into: &into, count: &events}
		if err := one.ask(a); err != nil {
			return nil, fmt.Errorf("%s: %w", one.name, err)
		}
		took := time.Since(began)
		fmt.Fprintf(progress, "%s took %.1f s", one.name, took.Seconds())
		if events > 0 {
			fmt.Fprintf(progress, ", %.3g million events per second", float64(events)/took.Seconds()/1e6)
		}
		fmt.Fprintln(progress)
		r.Scenarios = append(r.Scenarios, into)
	}
	r.Checks = Judge(r)
	return r, nil
}
