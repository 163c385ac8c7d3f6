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

	"weir.io/weir/bench/sim"
	"weir.io/weir/lab/record"
)

// Study is what to simulate, and how thoroughly.
type Study struct {
	Settings record.Settings // Sample means nothing
	Only     []string        // the scenarios by name, of [Names]; nil: all
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

// Run runs the study. It reports progress, and how many events a second it simulated.
func (s Study) Run(ctx context.Context, progress io.Writer) (*record.Record, error) {
	r := &record.Record{Format: record.Format, Settings: s.Settings, Scenarios: []record.Scenario{}, Checks: []record.Check{}}
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
	return r, nil
}

// Times are in mean service times. A bare number has no unit that could take a prefix.
var (
	P50  = record.Quantity{Name: "p50", Unit: "1", Better: record.Lower}
	P99  = record.Quantity{Name: "p99", Unit: "1", Better: record.Lower}
	P999 = record.Quantity{Name: "p99.9", Unit: "1", Better: record.Lower}
)

// smokeRequests is few: enough for some result.
const smokeRequests = 400

// simulate runs a cluster once per round, each with a seed of its own. In a round all
// policies and conditions have the same seed.
func (a *asking) simulate(c sim.Config, note func(*sim.Result)) error {
	if a.settings.Smoke {
		c.Warm, c.Count = smokeRequests, smokeRequests
	}
	for round := range a.settings.Rounds {
		if err := a.context.Err(); err != nil {
			return err
		}
		c.Seed = a.settings.Seed + uint64(round)
		result, err := sim.Run(c)
		if err != nil {
			return err
		}
		*a.count += result.Events
		note(result)
	}
	return nil
}

// once is the same scenario, in a single round if so is set.
func (a *asking) once(so bool) *asking {
	if so {
		a = &asking{context: a.context, settings: a.settings, into: a.into, count: a.count}
		a.settings.Rounds = 1
	}
	return a
}

// times records percentiles of request times.
func (a *asking) times(c sim.Config, at record.Conditions, quantities ...record.Quantity) error {
	shares := map[string]float64{P50.Name: 0.5, P99.Name: 0.99, P999.Name: 0.999}
	return a.simulate(c, func(r *sim.Result) {
		for _, q := range quantities {
			a.into.Add(c.Policy, at, q, r.Percentile(shares[q.Name]))
		}
	})
}

// asksServers says whether a policy uses servers' reports.
func asksServers(policy string) bool { return policy == sim.LeastConn || policy == sim.P2C }
