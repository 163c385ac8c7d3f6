package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
)

// daemon is what run and agent have in common: a file that they follow, and what
// they can say about that.
type daemon struct {
	log *slog.Logger
	// apply makes the kernel do what a configuration says.
	apply func(model.Config) error
	// running returns the configuration that the kernel does.
	running func() model.Config

	mu      sync.Mutex
	info    api.Info
	badFile error // what is wrong with the file as it is now
	badSet  error // why the kernel did not take the last valid version
}

func newDaemon(file, pin string, log *slog.Logger) *daemon {
	return &daemon{log: log, info: api.Info{
		Version: version, PID: os.Getpid(), Started: time.Now().Truncate(time.Second), File: file, Pin: pin,
	}}
}

// Config returns the configuration that runs.
func (d *daemon) Config() model.Config { return d.running() }

// Info returns what the process knows about itself.
func (d *daemon) Info() api.Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	info := d.info
	if err := errors.Join(d.badFile, d.badSet); err != nil {
		info.Refused = err.Error()
	}
	return info
}

// noteSet remembers whether the kernel took a configuration.
func (d *daemon) noteSet(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.badSet = err; err == nil {
		d.info.Applied = time.Now().Truncate(time.Millisecond)
	}
}

func (d *daemon) noteFile(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.badFile = err
}

// follow applies every new version of the file until the context ends. A bad one
// changes nothing.
func (d *daemon) follow(ctx context.Context, changes <-chan config.Change) {
	for {
		select {
		case <-ctx.Done():
			return
		case change, open := <-changes:
			if !open {
				return
			}
			d.change(change)
		}
	}
}

func (d *daemon) change(change config.Change) {
	d.noteFile(change.Err)
	if errors.Is(change.Err, fs.ErrNotExist) {
		d.log.Warn("there is no configuration any more, what was applied goes on", "error", change.Err)
		return
	}
	if change.Err != nil {
		logErrors(d.log, "configuration refused, the one before goes on", change.Err)
		return
	}
	if err := d.apply(change.Config); err != nil {
		d.log.Error("configuration not applied yet", "error", err)
		return
	}
	d.log.Info("configuration applied", "services", len(change.Config.Services))
}

// logErrors logs what is wrong with a file, each thing on its own.
func logErrors(log *slog.Logger, message string, err error) {
	var errs config.Errors
	if !errors.As(err, &errs) {
		log.Error(message, "error", err)
		return
	}
	for _, e := range errs {
		log.Error(message, "error", e)
	}
}

// serve answers on the listener until the context ends. The function that it
// returns waits for that.
func (d *daemon) serve(ctx context.Context, server *api.Server, listener net.Listener) (wait func()) {
	var served sync.WaitGroup
	served.Go(func() {
		if err := server.Serve(ctx, listener); err != nil {
			d.log.Error("API ended", "error", err)
		}
	})
	return served.Wait
}

// firstConfig begins to watch the file and reads it, in this order: no version is
// missed.
func firstConfig(ctx context.Context, file string) (model.Config, <-chan config.Change, error) {
	changes, err := config.Watch(ctx, file)
	if errors.Is(err, fs.ErrNotExist) {
		return model.Config{}, nil, noFile(file)
	}
	if err != nil {
		return model.Config{}, nil, fmt.Errorf("configuration: %w", err)
	}
	c, err := config.Load(file)
	if errors.Is(err, fs.ErrNotExist) {
		err = noFile(file)
	}
	return c, changes, err
}

func noFile(file string) error { return fmt.Errorf("there is no %s; name one with -c", file) }
