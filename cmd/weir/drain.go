package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// drain is how a director ends that is told to. Without a wait it ends at once, and the pinned
// programs go on forwarding for the next process. With a wait it withdraws its routes, goes on for
// that time, for clients whose routers have not turned away yet, and then detaches.
type drain struct {
	wait   time.Duration
	begins func(wait time.Duration) // called when the wait begins; set before runs is
	runs   atomic.Bool              // the director forwards: there is something to wait for
	over   atomic.Bool              // the wait has passed
}

// context returns a context that ends the wait after the one that a signal ends. A second signal
// ends it at once.
func (d *drain) context(told context.Context, log *slog.Logger) (context.Context, context.CancelFunc) {
	if d.wait <= 0 {
		return context.WithCancel(told)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(context.WithoutCancel(told))
	go func() {
		defer cancel()
		defer signal.Stop(signals)
		select {
		case <-told.Done():
			d.outlast(ctx, signals, log)
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func (d *drain) outlast(ctx context.Context, signals <-chan os.Signal, log *slog.Logger) {
	if !d.runs.Load() {
		return
	}
	log.Info("director drains: it forwards for a while, and then detaches", "wait", d.wait)
	if d.begins != nil {
		d.begins(d.wait)
	}
	end := time.NewTimer(d.wait)
	defer end.Stop()
	for range 2 { // the first is the one that began the drain
		select {
		case <-signals:
		case <-ctx.Done():
			return
		case <-end.C:
			d.over.Store(true)
			return
		}
	}
	log.Info("told again: the director does not wait")
}
