package main

import (
	"context"
	"log/slog"
	"sync"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/utilization"
)

// gauge is how busy the CPUs are. The zero value knows nothing: it is for a director whose kernel
// refuses to tell.
type gauge struct {
	watch *utilization.Watch
	log   *slog.Logger
}

// startGauge watches the CPUs until the context ends; end waits for that. Forwarding does not need
// it, so errors are only logged.
func startGauge(ctx context.Context, log *slog.Logger) (g gauge, end func()) {
	meter, err := utilization.Open()
	if err != nil {
		log.Warn("no utilization in status and metrics, forwarding is not affected", "error", err)
		return gauge{}, func() {}
	}
	watch, err := utilization.NewWatch(meter)
	if err != nil {
		log.Warn("no utilization in status and metrics, forwarding is not affected", "error", err)
		return gauge{}, func() { closeMeter(meter, log) }
	}
	var running sync.WaitGroup
	running.Go(func() { watch.Run(ctx, log) })
	return gauge{watch, log}, func() {
		running.Wait()
		closeMeter(meter, log)
	}
}

func closeMeter(meter *utilization.Meter, log *slog.Logger) {
	if err := meter.Close(); err != nil {
		log.Warn("utilization not closed", "error", err)
	}
}

// cpus returns the work of each CPU in the last seconds, nil when it is not known.
func (g gauge) cpus() []model.CPUStatus {
	if g.watch == nil {
		return nil
	}
	work, err := g.watch.CPUs()
	if err != nil {
		g.log.Warn("utilization not read", "error", err)
		return nil
	}
	cpus := make([]model.CPUStatus, len(work))
	for i, c := range work {
		cpus[i] = model.CPUStatus{CPU: c.Number, Utilization: c.Utilization, Busy: c.Busy, Fullness: c.Fullness}
	}
	return cpus
}
