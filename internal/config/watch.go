package config

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"weir.io/weir/internal/model"
)

// settle is how long a directory must be quiet before the file is read: an editor or a copy does
// several things to it. A directory that is never quiet delays that by settleAtMost.
const (
	settle       = 50 * time.Millisecond
	settleAtMost = 500 * time.Millisecond
)

// retry is how often a missing directory is looked for. A directory that inotify cannot watch has its
// file read as often.
const retry = time.Second

// Change is a new version of the configuration file: a valid one, or what is
// wrong with it.
type Change struct {
	Config    model.Config
	Text      []byte // as it was read
	Err       error
	Unwatched error // why the file is read every second: its directory cannot be watched
}

// Watch reports every new version of the file until the context ends; then it closes the channel.
// It looks for a version at a hangup, which also reports an unchanged file, and when something
// changes in the file's directory: so editors that rename, and Kubernetes, which swaps a symbolic
// link beside the file, are seen. A file that is itself a link to another directory needs a hangup.
// Without a directory it fails. An unchanged file is also reported when the directory begins or ends
// to be watched.
func Watch(ctx context.Context, path string, hangup <-chan os.Signal) (<-chan Change, error) {
	w := &watcher{path: path, changes: make(chan Change)}
	if err := w.watch(); errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	w.text, _ = ReadFile(path)
	go func() {
		defer close(w.changes)
		w.run(ctx, hangup)
	}()
	return w.changes, nil
}

// watcher belongs to the goroutine that runs it.
type watcher struct {
	path      string
	dir       *directory // nil: it is missing, or cannot be watched
	unwatched error      // why it cannot be
	changes   chan Change
	text      []byte // as last read
	problem   string // of the last read, if it went wrong
}

// watch begins to watch the file's directory.
func (w *watcher) watch() (err error) {
	w.dir, err = watchDirectory(filepath.Dir(w.path))
	w.unwatched = err
	if errors.Is(err, fs.ErrNotExist) {
		w.unwatched = nil // then the file is missing, too, which is said
	}
	return err
}

func (w *watcher) run(ctx context.Context, hangup <-chan os.Signal) {
	var quiet, again <-chan time.Time
	var latest time.Time // when the file is read, even if the directory is not quiet
	if w.dir == nil {
		w.read(ctx, true)
		again = time.After(retry)
	}
	for {
		var events <-chan struct{}
		if w.dir != nil {
			events = w.dir.events
		}
		select {
		case <-ctx.Done():
			if w.dir != nil {
				w.dir.close()
			}
			return
		case <-hangup:
			w.read(ctx, true)
		case _, open := <-events:
			if quiet == nil {
				latest = time.Now().Add(settleAtMost)
			}
			quiet = time.After(min(settle, time.Until(latest)))
			if !open {
				w.dir.close()
				w.dir = nil
				again = time.After(retry)
			}
		case <-quiet:
			quiet = nil
			w.read(ctx, false)
		case <-again:
			again = nil
			before := w.unwatched
			if w.watch() != nil {
				again = time.After(retry)
			}
			w.read(ctx, (before == nil) != (w.unwatched == nil))
		}
	}
}

// read reports the file if it has changed, or if that is asked for.
func (w *watcher) read(ctx context.Context, always bool) {
	text, err := ReadFile(w.path)
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if !always && problem == w.problem && (err != nil || bytes.Equal(text, w.text)) {
		return
	}
	w.problem = problem
	change := Change{Err: err, Unwatched: w.unwatched}
	if err == nil {
		w.text = text
		change.Text = text
		change.Config, change.Err = Parse(w.path, text)
	}
	select {
	case w.changes <- change:
	case <-ctx.Done():
	}
}
