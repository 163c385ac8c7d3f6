package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
)

// daemon is the common part of run and agent: a file that they follow, and its status.
type daemon struct {
	log *slog.Logger
	// apply makes the kernel do what a configuration says.
	apply func(model.Config) error
	// keep keeps the text of a file that runs; nil: it is not needed.
	keep func(text []byte)
	// running returns the configuration that runs in the kernel.
	running func() model.Config

	problems *problems.List

	mu      sync.Mutex
	info    api.Info
	ran     ranFile
	offered offered
	damage  map[string]error // by the name under which the file is kept aside
}

// offered is the last version of the file that should run, until it is kept.
type offered struct {
	config model.Config
	text   []byte
}

func newDaemon(file, pin string, log *slog.Logger) *daemon {
	return &daemon{log: log, problems: problems.New(log), info: api.Info{
		Version: version, PID: os.Getpid(), Started: time.Now().Truncate(time.Second), File: file, Pin: pin,
	}}
}

// Config returns the configuration that runs.
func (d *daemon) Config() model.Config { return d.running() }

// Info returns what the process knows about itself.
func (d *daemon) Info() api.Info {
	d.mu.Lock()
	info := d.info
	d.mu.Unlock()
	info.Problems = d.problems.All()
	var refused []string
	for _, p := range info.Problems {
		if p.Severity == model.SeverityError && p.Kind.Refuses() {
			refused = append(refused, p.Text)
		}
	}
	info.Refused = strings.Join(refused, "\n")
	return info
}

// noteSet remembers whether the kernel took a configuration.
func (d *daemon) noteSet(err error) {
	d.problems.Report(model.ProblemDatapath, "", err)
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.info.Applied = time.Now().Truncate(time.Millisecond)
}

// noteRestart lists a change that takes effect when the process starts again.
func (d *daemon) noteRestart(key string, changed bool) {
	var err error
	if changed {
		err = problems.Fixed(errors.New(key+" is another than when the process started"), "start it again: then the change takes effect")
	}
	d.problems.Warn(model.ProblemRestart, key, err)
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

// change applies another version of the file. Its errors are listed, until the next version.
func (d *daemon) change(change config.Change) {
	err := change.Err
	if errors.Is(err, fs.ErrNotExist) {
		d.problems.Report(model.ProblemFile, d.info.File, problems.Fixed(fmt.Errorf("there is no configuration any more, what was applied goes on: %w", err), "put it back: the process cannot start again without"))
		return
	}
	if err == nil {
		d.offer(change.Config, change.Text)
		err = d.apply(change.Config)
	}
	var listed listedError
	if errors.As(err, &listed) {
		return
	}
	d.problems.Report(model.ProblemFile, d.info.File, err)
	if err == nil {
		d.keepOffered(change.Config)
		d.log.Info("configuration applied", "services", len(change.Config.Services))
	}
}

// offer remembers the text of a version of the file that should run.
func (d *daemon) offer(c model.Config, text []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.offered = offered{c, text}
}

// keepOffered keeps that text, once, if that version is the one that runs: an earlier one may be
// tried again, and run, while this one does not.
func (d *daemon) keepOffered(runs model.Config) {
	d.mu.Lock()
	text := d.offered.text
	keep := len(text) > 0 && reflect.DeepEqual(d.offered.config, runs)
	if keep {
		d.offered = offered{}
	}
	d.mu.Unlock()
	if keep && d.keep != nil {
		d.keep(text)
	}
}

// serve answers on the listener until the context ends. The function that it returns waits for the
// end.
func (d *daemon) serve(ctx context.Context, server *api.Server, listener net.Listener) (wait func()) {
	var served sync.WaitGroup
	served.Go(func() { d.answer(ctx, server, listener) })
	return served.Wait
}

// answer answers on the listener until the context ends or the listener is closed.
func (d *daemon) answer(ctx context.Context, server *api.Server, listener net.Listener) {
	if err := server.Serve(ctx, listener); err != nil && !errors.Is(err, net.ErrClosed) {
		d.log.Error("API ended", "error", err)
	}
}

// firstConfig begins to watch the file and reads it, in this order: no version is missed. The text
// is returned even if the file is invalid.
func firstConfig(ctx context.Context, file string) (c model.Config, text []byte, changes <-chan config.Change, err error) {
	changes, err = config.Watch(ctx, file)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil, nil, noFile(file)
	}
	if err != nil {
		return c, nil, nil, fmt.Errorf("configuration: %w", err)
	}
	c, text, err = config.LoadText(file)
	if errors.Is(err, fs.ErrNotExist) {
		err = noFile(file)
	}
	return c, text, changes, err
}

func noFile(file string) error { return fmt.Errorf("there is no %s; name one with -c", file) }

// fieldError is a problem with a field of a file that was read, and runs.
type fieldError struct {
	text  string
	place model.Place
}

// Error names the file, the line and the field.
func (e *fieldError) Error() string {
	if e.place.Line > 0 {
		return fmt.Sprintf("%s:%d: %s: %s", e.place.File, e.place.Line, e.place.Field, e.text)
	}
	return fmt.Sprintf("%s: %s: %s", e.place.File, e.place.Field, e.text)
}

// Place returns the field's place in the file.
func (e *fieldError) Place() model.Place { return e.place }

// placed returns the error with the place of the file's field.
func (d *daemon) placed(field, text string) error {
	file, _ := os.ReadFile(d.info.File)
	return &fieldError{text, model.Place{File: d.info.File, Field: field, Line: config.Line(file, field)}}
}
