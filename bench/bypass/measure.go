package bypass

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"weir.io/weir/bench/echo"
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
