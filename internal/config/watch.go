package config

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"weir.io/weir/internal/model"
)

// settle is how long a directory must be quiet before the file is read: an
// editor or a copy does several things to it.
const settle = 50 * time.Millisecond

// retry is how often a missing directory is looked for.
const retry = time.Second

// Change is a new version of the configuration file: a valid one, or what is
// wrong with it.
type Change struct {
	Config model.Config
	Text   []byte // as it was read
	Err    error
}

// Watch reports every new version of the file until the context ends; then it closes the channel.
// It looks for a version on SIGHUP, which also reports an unchanged file, and when something
// changes in the file's directory: so editors that rename, and Kubernetes, which swaps a symbolic
// link beside the file, are seen. A file that is itself a link to another directory needs SIGHUP.
func Watch(ctx context.Context, path string) (<-chan Change, error) {
	dir, err := watchDirectory(path)
	if err != nil {
		return nil, err
	}
	w := &watcher{path: path, dir: dir, changes: make(chan Change)}
	w.text, _ = read(path)
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	go func() {
		defer close(w.changes)
		defer dir.close()
		defer signal.Stop(hangup)
		w.run(ctx, hangup)
	}()
	return w.changes, nil
}

// watcher belongs to the goroutine that runs it.
type watcher struct {
	path    string
	dir     *directory
	changes chan Change
	text    []byte // as last read
	problem string // of the last read, if it went wrong
}

func (w *watcher) run(ctx context.Context, hangup <-chan os.Signal) {
	var quiet, again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			w.read(ctx, true)
		case e := <-w.dir.events:
			quiet = time.After(settle)
			if e == directoryLost {
				again = time.After(retry)
			}
		case <-quiet:
			quiet = nil
			w.read(ctx, false)
		case <-again:
			again = nil
			if w.dir.watch() != nil {
				again = time.After(retry)
				continue
			}
			quiet = time.After(settle)
		}
	}
}

// read reports the file if it has changed, or if that is asked for.
func (w *watcher) read(ctx context.Context, always bool) {
	text, err := read(w.path)
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if !always && problem == w.problem && (err != nil || bytes.Equal(text, w.text)) {
		return
	}
	w.problem = problem
	change := Change{Err: err}
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
