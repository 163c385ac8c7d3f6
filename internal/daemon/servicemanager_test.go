package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
	"weir.io/weir/internal/store"
)

// systemdSocket is the socket on which systemd hears the process of the test.
func systemdSocket(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return socket
}

// told returns the lines of the next message, without the times in it.
func told(t *testing.T, socket *net.UnixConn) string {
	t.Helper()
	message := make([]byte, 4096)
	n, err := socket.Read(message)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(strings.Split(string(message[:n]), "\n"), func(line string) bool {
		return line == "" || strings.HasPrefix(line, "MONOTONIC_USEC=")
	})
	return strings.Join(lines, " ")
}

// systemd hears when a process is ready, reloads and stops, and its status when that changes.
func TestSystemdIsTold(t *testing.T) {
	socket := systemdSocket(t)
	d := New(Deps{File: "weir.yaml", State: t.TempDir(), Running: store.RunningDirector, Log: slog.New(slog.DiscardHandler)})
	want := func(messages ...string) {
		t.Helper()
		for _, message := range messages {
			if got := told(t, socket); got != message {
				t.Errorf("systemd is told %q, want %q", got, message)
			}
		}
	}
	changes := make(chan config.Change)
	applied := make(chan string)
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		d.Follow(ctx, changes, func(c model.Config) error { applied <- c.Services[0].Name; return nil })
		close(ended)
	}()
	version := func(name string) {
		changes <- config.Change{Config: model.Config{Services: []model.Service{{Name: name}}}}
		<-applied
	}
	version("before it is ready")
	d.Ready(ctx, nil)
	want("READY=1")
	version("a later one")
	want("RELOADING=1", "READY=1")
	d.Say("forwards")
	d.Say("forwards")
	d.Problems.Report(model.ProblemBFD, "a", problems.Fixed(errors.New("two\nlines"), "mend them"))
	d.Say("forwards")
	want("STATUS=forwards", "STATUS=forwards; 1 problem: two lines")
	d.Stopping("forwards for an hour", time.Hour)
	d.Stopping("ends", 0)
	d.Say("is not heard any more")
	version("the last one")
	cancel()
	<-ended
	d.manager.notify("nothing else")
	want("STOPPING=1 STATUS=forwards for an hour EXTEND_TIMEOUT_USEC=3690000000", "STOPPING=1 STATUS=ends", "nothing else")
}

// A service manager that does not read keeps nothing waiting: what does not fit is not sent.
func TestFullNotifySocketKeepsNothingWaiting(t *testing.T) {
	systemdSocket(t)
	d := New(Deps{State: t.TempDir(), Running: store.RunningDirector, Log: slog.New(slog.DiscardHandler)})
	for at := range 1000 { // far more than a socket's queue has room for
		if err := send(os.Getenv("NOTIFY_SOCKET"), "fills it"); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("message %d: %v", at, err)
			}
			d.Say("goes on")
			d.Stopping("ends", 0)
			return
		}
	}
	t.Error("the socket is never full")
}

// While what is asked whether it is alive does not answer, the watchdog is fed as often as there is
// progress: work that takes long is no hang.
func TestWatchdogIsFedByProgress(t *testing.T) {
	socket := systemdSocket(t)
	t.Setenv("WATCHDOG_USEC", "20000")
	var steps atomic.Uint64
	d := New(Deps{State: t.TempDir(), Running: store.RunningDirector, Log: slog.New(slog.DiscardHandler), Progress: steps.Load})
	asked := make(chan struct{})
	d.Ready(t.Context(), func(ctx context.Context) error {
		close(asked)
		<-ctx.Done()
		return ctx.Err()
	})
	if got := told(t, socket); got != "READY=1" {
		t.Errorf("systemd is told %q", got)
	}
	<-asked
	for range 3 {
		steps.Add(1)
		if got := told(t, socket); got != "WATCHDOG=1" {
			t.Errorf("systemd is told %q", got)
		}
		d.manager.notify("no progress") // what comes later was sent later
		if got := told(t, socket); got != "no progress" {
			t.Errorf("systemd is told %q while nothing goes on", got)
		}
	}
}

// A process that follows a file is not alive while a version of it is applied and does not end.
func TestAliveIfFollowingGoesOn(t *testing.T) {
	d := New(Deps{State: t.TempDir(), Running: store.RunningDirector, Log: slog.New(slog.DiscardHandler)})
	changes, began, goOn := make(chan config.Change), make(chan struct{}), make(chan struct{})
	go d.Follow(t.Context(), changes, func(model.Config) error { close(began); <-goOn; return nil })
	if err := d.Alive(t.Context()); err != nil {
		t.Error(err)
	}
	changes <- config.Change{}
	<-began
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Alive(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a process that hangs says %v", err)
	}
	close(goOn)
	if err := d.Alive(t.Context()); err != nil {
		t.Error(err)
	}
}

// The watchdog is fed as long as the process is alive, and not while it hangs.
func TestWatchdogIsFedByWhatWorks(t *testing.T) {
	socket := systemdSocket(t)
	t.Setenv("WATCHDOG_USEC", "20000")
	d := New(Deps{State: t.TempDir(), Running: store.RunningDirector, Log: slog.New(slog.DiscardHandler)})
	asked, answer := make(chan struct{}), make(chan struct{})
	d.Ready(t.Context(), func(ctx context.Context) error {
		select {
		case asked <- struct{}{}:
			<-answer
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if got := told(t, socket); got != "READY=1" {
		t.Errorf("systemd is told %q", got)
	}
	for range 3 {
		<-asked
		d.manager.notify("it hangs") // what comes later was sent later
		answer <- struct{}{}
		for _, message := range []string{"it hangs", "WATCHDOG=1"} {
			if got := told(t, socket); got != message {
				t.Errorf("systemd is told %q, want %q", got, message)
			}
		}
	}
}
