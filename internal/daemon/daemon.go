// Package daemon is what weir run and weir agent have in common: a process that follows a file,
// keeps the version of it that runs, examines its host, answers on a socket, and lists what does not
// run of what was asked for.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
	"weir.io/weir/internal/store"
)

// Daemon is a process that follows a file, and its status.
type Daemon struct {
	Problems *problems.List

	log       *slog.Logger
	manager   serviceManager
	following chan struct{} // Follow sends between two things that it does
	state     string        // the directory of its state
	running   store.RunningName
	store     *store.File

	mu      sync.Mutex
	info    api.Info
	ran     ranFile
	offered offered
}

// EndSignals end a process. SIGUSR2 says that another one takes over: a director does not withdraw
// then, whatever its grace period is.
var EndSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGUSR2}

// Signals tell a process that runs what to do, and do not end it. One that comes before the process looks
// for it waits.
type Signals struct {
	Hangup   chan os.Signal // SIGHUP: the file is to be read
	Shutdown chan os.Signal // SIGUSR1: the next signal comes because the host shuts down
}

// HearSignals begins to hear them, for as long as the process lives: SIGHUP would end it.
func HearSignals() *Signals {
	s := &Signals{Hangup: make(chan os.Signal, 1), Shutdown: make(chan os.Signal, 1)}
	signal.Notify(s.Hangup, syscall.SIGHUP)
	signal.Notify(s.Shutdown, syscall.SIGUSR1)
	return s
}

// Deps are what a daemon works with.
type Deps struct {
	Version string
	File    string // that it follows
	Pin     string // the directory of what it leaves in the kernel
	State   string // the directory of its state, in which it keeps the version of the file that runs
	Running store.RunningName
	Lost    error       // why the version that ran last is not known, if one was kept
	Store   *store.File // is in the same directory; nil: it has no more state than that version
	// Progress grows while work goes on that takes long; nil: there is none.
	Progress func() uint64
	Log      *slog.Logger
}

// offered is the last version of the file that should run, until it is kept.
type offered struct {
	config model.Config
	text   []byte // none: it is kept already
	waits  bool   // there is one, and it has not run yet
}

// New returns a daemon that follows nothing yet.
func New(deps Deps) *Daemon {
	host, _ := os.Hostname() // a host without a name has none here
	d := &Daemon{
		Problems: problems.New(deps.Log), log: deps.Log, manager: serviceManager{log: deps.Log, progress: deps.Progress}, following: make(chan struct{}), state: deps.State, running: deps.Running, store: deps.Store,
		info: api.Info{
			Version: deps.Version, Host: host, PID: os.Getpid(), Started: time.Now().Truncate(time.Second), File: deps.File, Pin: deps.Pin,
		},
	}
	d.Problems.Warn(model.ProblemStore, partRunning, deps.Lost)
	if d.manager.progress != nil {
		go d.manager.extendStart()
	}
	return d
}

// File is the file that the process follows.
func (d *Daemon) File() string { return d.info.File }

// Pin is the directory of what the process leaves in the kernel.
func (d *Daemon) Pin() string { return d.info.Pin }

// Info returns what the process knows about itself.
func (d *Daemon) Info() api.Info {
	d.mu.Lock()
	info := d.info
	d.mu.Unlock()
	info.Problems = d.Problems.All()
	var refused []string
	for _, p := range info.Problems {
		if p.Severity == model.SeverityError && p.Kind.Refuses() {
			refused = append(refused, p.Text)
		}
	}
	info.Refused = strings.Join(refused, "\n")
	return info
}

// NoteSet lists the error if the kernel did not take what should run, and notes the time if it did.
func (d *Daemon) NoteSet(err error) {
	d.Problems.Report(model.ProblemDatapath, "", err)
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.info.Changed = time.Now().Truncate(time.Millisecond)
}

// NoteAgain does the same for a configuration that was tried again, and keeps its text if it runs.
func (d *Daemon) NoteAgain(c model.Config, err error) {
	if d.NoteSet(err); err == nil {
		d.KeepOffered(c)
	}
}

// NoteRestart lists a change that takes effect when the process starts again.
func (d *Daemon) NoteRestart(key string, changed bool) {
	var err error
	if changed {
		err = problems.Fixed(errors.New(key+" is another than when the process started"), "start it again: then the change takes effect")
	}
	d.Problems.Warn(model.ProblemRestart, key, err)
}

// Follow applies every new version of the file until the context ends. Of those that come within a
// version's coalesce only the last is applied. A bad one changes nothing.
// Its errors are listed until the next version, except those that apply marks as Listed.
func (d *Daemon) Follow(ctx context.Context, changes <-chan config.Change, apply func(model.Config) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case d.following <- struct{}{}:
		case change, open := <-changes:
			if !open {
				return
			}
			over := d.manager.reloads()
			for _, c := range d.last(ctx, change, changes) {
				d.change(c, apply)
			}
			over()
		}
	}
}

// Alive waits until Follow is done with a version of the file, and ready for another one.
func (d *Daemon) Alive(ctx context.Context) error {
	select {
	case <-d.following:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// last waits for versions that come after this one, as long as it says, and returns the last that can
// be applied, followed by what is wrong with a later one.
func (d *Daemon) last(ctx context.Context, change config.Change, changes <-chan config.Change) []config.Change {
	if change.Err != nil {
		return []config.Change{change}
	}
	good := change
	wait := time.After(time.Duration(change.Config.Coalesce))
	for {
		select {
		case <-ctx.Done():
			return nil
		case d.following <- struct{}{}:
		case <-wait:
			if change.Err != nil {
				return []config.Change{good, change}
			}
			return []config.Change{good}
		case c, open := <-changes:
			if !open {
				return nil
			}
			if change = c; c.Err == nil {
				good = c
			}
		}
	}
}

func (d *Daemon) change(change config.Change, apply func(model.Config) error) {
	d.Problems.Warn(model.ProblemFile, "unwatched", unwatched(change.Unwatched))
	err := change.Err
	if err != nil {
		d.warnOfFormerKeys(nil) // which of them the file has now is not known
	}
	if err == nil {
		d.Offer(change.Config, change.Text) // before it is applied: it may be kept as soon as it runs
		err = apply(change.Config)
	}
	if errors.As(err, new(listedError)) {
		return
	}
	d.Refuse(err)
	if err == nil {
		d.KeepOffered(change.Config)
		d.log.Info("configuration applied", "services", len(change.Config.Services))
	}
}

// Refuse lists why the file is refused while the last version that ran goes on; nil: it is not.
func (d *Daemon) Refuse(err error) {
	if isMissing(err, d.info.File) {
		err = problems.Fixed(fmt.Errorf("there is no %s any more: the last version that ran goes on", d.info.File), "put it back")
	}
	d.Problems.Report(model.ProblemFile, d.info.File, err)
}

// missingFile is the error of a process that needs the file to start.
type missingFile struct{ file string }

func (e missingFile) Error() string { return fmt.Sprintf("there is no %s; name one with -c", e.file) }

// isMissing reports whether the file itself is missing, and not one that it names.
func isMissing(err error, file string) bool {
	var path *fs.PathError
	return errors.As(err, new(missingFile)) || errors.As(err, &path) && errors.Is(path, fs.ErrNotExist) && path.Path == file
}

func unwatched(why error) error {
	if why == nil {
		return nil
	}
	return problems.Fixed(fmt.Errorf("its directory cannot be watched, so the file is read every second: %w", why),
		"raise the sysctls fs.inotify.max_user_instances and max_user_watches, or let weir read the directory")
}

type listedError struct{ error }

// Unwrap returns what is wrong.
func (e listedError) Unwrap() error { return e.error }

// Listed marks an error that the part that has it puts on the list of problems itself.
func Listed(err error) error { return listedError{err} }

// Offer remembers the text of a version of the file that should run, and lists its keys with former
// names. Without a text it is the version that was kept: the file has other lines now.
func (d *Daemon) Offer(c model.Config, text []byte) {
	keys := slices.Clone(c.FormerKeys)
	for i := range keys {
		if text == nil {
			keys[i].Line = 0
		}
	}
	d.warnOfFormerKeys(keys)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.offered = offered{c, text, true}
}

// KeepOffered keeps that text, and notes the time, once, if that version is the one that runs: an
// earlier one may be tried again, and run, while this one does not. A version without a text is kept
// already.
func (d *Daemon) KeepOffered(runs model.Config) {
	d.mu.Lock()
	text := d.offered.text
	is := d.offered.waits && reflect.DeepEqual(d.offered.config, runs)
	if is {
		d.info.Applied = time.Now().Truncate(time.Millisecond)
		d.offered = offered{}
	}
	d.mu.Unlock()
	if is && len(text) > 0 {
		d.saveRunning(text)
	}
}

// Serve answers on the listener until the context ends or the listener is closed. The function that it
// returns waits for that.
func (d *Daemon) Serve(ctx context.Context, server *api.Server, listener net.Listener) (wait func()) {
	var served sync.WaitGroup
	served.Go(func() {
		if err := server.Serve(ctx, listener); err != nil && !errors.Is(err, net.ErrClosed) {
			d.log.Error("API ended", "error", err)
		}
	})
	return served.Wait
}

// FirstConfig begins to watch the file and reads it, in this order: no version is missed. The text
// is returned even if the file is invalid.
func FirstConfig(ctx context.Context, file string, hangup <-chan os.Signal) (c model.Config, text []byte, changes <-chan config.Change, err error) {
	changes, err = config.Watch(ctx, file, hangup)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil, nil, missingFile{file}
	}
	if err != nil {
		return c, nil, nil, fmt.Errorf("configuration: %w", err)
	}
	c, text, err = config.LoadText(file)
	if isMissing(err, file) {
		err = missingFile{file}
	}
	return c, text, changes, err
}

// warnOfFormerKeys lists the fields that the file has by former names; none: it has no such fields.
func (d *Daemon) warnOfFormerKeys(keys []model.FormerKey) {
	var warning error
	if len(keys) > 0 {
		k := keys[0]
		text := k.Field + ": " + k.Problem()
		if len(keys) > 1 {
			text += fmt.Sprintf(" (%d fields have former names)", len(keys))
		}
		warning = problems.Fixed(&PlacedError{errors.New(text), model.Place{File: d.info.File, Line: k.Line, Field: k.Field}}, "write "+k.Now)
	}
	d.Problems.Warn(model.ProblemFile, "former names", warning)
}

// PlacedError is an error with its place: in a file, or in the set of an owner.
type PlacedError struct {
	Err error
	At  model.Place
}

// Error begins with the file and the line, if they are known.
func (e *PlacedError) Error() string {
	switch {
	case e.At.Line > 0:
		return fmt.Sprintf("%s:%d: %v", e.At.File, e.At.Line, e.Err)
	case e.At.File != "":
		return fmt.Sprintf("%s: %v", e.At.File, e.Err)
	}
	return e.Err.Error()
}

// Unwrap returns what is wrong.
func (e *PlacedError) Unwrap() error { return e.Err }

// Place returns the error's place.
func (e *PlacedError) Place() model.Place { return e.At }

// Placed returns an error about a field of the file, with its place.
func (d *Daemon) Placed(field, text string) error {
	file, _ := config.ReadFile(d.info.File) // without it there is no line
	return &PlacedError{errors.New(field + ": " + text), model.Place{File: d.info.File, Field: field, Line: config.Line(file, field)}}
}
