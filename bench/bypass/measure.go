package bypass

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"weir.io/weir/bench/echo"
	"weir.io/weir/bench/inside"
	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// Result is the outcome of one measurement of a way.
type Result struct {
	echo.Result
	AtDirector uint64 // packets that the director has seen; 0 for ways without one
}

// Measure sends requests by a way for a while: over one connection, or over a connection each.
func (l *Lab) Measure(ctx context.Context, w *Way, connections bool, duration time.Duration) (Result, error) {
	before, err := l.seen(ctx, w)
	if err != nil {
		return Result{}, err
	}
	out, err := process.Run(ctx, l.clientOf(w), l.program, "echo-client", "--to", fmt.Sprintf("%s:%d", w.to, port), "--for", duration.String(),
		"--cpu", strconv.Itoa(clientCPU), "--connections="+strconv.FormatBool(connections))
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", w.Name, err)
	}
	var r Result
	if err := json.Unmarshal([]byte(out), &r.Result); err != nil {
		return Result{}, fmt.Errorf("%s: read what the client says: %w", w.Name, err)
	}
	after, err := l.seen(ctx, w)
	r.AtDirector = after - before
	return r, err
}

func (l *Lab) clientOf(w *Way) *netlab.Host {
	if w.mode == model.Redirect {
		return l.asker
	}
	return l.client
}

var errNoService = errors.New("the director does not have the service")

// seen is how many packets of a way the director has seen.
func (l *Lab) seen(ctx context.Context, w *Way) (uint64, error) {
	if !w.Weir {
		return 0, nil
	}
	services, err := api.NewClient(l.director.Socket).Services(ctx)
	if err != nil {
		return 0, err
	}
	for _, s := range services {
		if s.Name == w.Name {
			return s.Packets, nil
		}
	}
	return 0, fmt.Errorf("%s: %w", w.Name, errNoService)
}

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
