package bypass

import (
	"context"
	"errors"
	"time"

	"weir.io/weir/bench/inside"
)

// AgentCost is what one program of an agent costs a request of a redirected connection.
type AgentCost struct {
	Host    string // client or backend
	Program string
	Runs    float64       // for each request
	Time    time.Duration // of one run
}

// AgentCosts asks over one redirected connection for a while, and returns how much the agents on
// both hosts took, and how long the median request took meanwhile.
func (l *Lab) AgentCosts(ctx context.Context, w *Way, duration time.Duration) (costs []AgentCost, r Result, err error) {
	clock, err := inside.NewClock()
	if err != nil {
		return nil, r, err
	}
	defer func() { err = errors.Join(err, clock.Close()) }()
	before, err := l.agentRuns(w)
	if err != nil {
		return nil, r, err
	}
	if r, err = l.Measure(ctx, w, false, duration); err != nil {
		return nil, r, err
	}
	after, err := l.agentRuns(w)
	if err != nil {
		return nil, r, err
	}
	for i, host := range []string{"client", "backend"} {
		for name, runs := range after[i] {
			of := runs.Since(before[i][name])
			if of.Count == 0 {
				continue
			}
			costs = append(costs, AgentCost{host, name, float64(of.Count) / float64(r.Requests),
				max(0, of.Time/time.Duration(of.Count)-clock.Overhead)})
		}
	}
	return costs, r, nil
}

// agentRuns are the runs of the client's agent, and of the backend's.
func (l *Lab) agentRuns(w *Way) (all [2]map[string]inside.Runs, err error) {
	for i, number := range []int{askingClient, w.server} {
		if all[i], err = inside.AgentRuns(l.agents[number].Pin); err != nil {
			return all, err
		}
	}
	return all, nil
}
