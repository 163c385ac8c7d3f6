package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// terminal is a pseudo-terminal: what a command writes to it can be read.
type terminal struct {
	command *os.File

	mu   sync.Mutex
	text strings.Builder
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal("unlock the terminal:", err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal("number of the terminal:", err)
	}
	term := &terminal{}
	if term.command, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { term.command.Close() })
	go func() { _, _ = io.Copy(term, master) }()
	return term
}

// Write keeps what was read.
func (x *terminal) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.text.Write(p)
}

// shows waits until the terminal got a text.
func (x *terminal) shows(t *testing.T, what string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { // between two looks
		x.mu.Lock()
		text := x.text.String()
		x.mu.Unlock()
		if strings.Contains(text, what) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the terminal shows no %q, but %q", what, text)
		}
	}
}

// A command that takes longer than a second says on a terminal what it waits for, and nothing of
// this stays: the table comes on an empty line. Other outputs get no such text.
func TestProgress(t *testing.T) {
	answer := make(chan struct{})
	slow := func(ctx context.Context, q model.Question) (model.Explanation, error) {
		select {
		case <-answer:
		case <-ctx.Done():
		}
		return fakeExplain(ctx, q)
	}
	log := slog.New(slog.DiscardHandler)
	server := api.NewServer(fakeDirector{}, fakeDirector{}, log)
	server.HandleExplain(slow)
	socket := filepath.Join(t.TempDir(), "weir.sock")
	serve(t, socket, server)
	args := []string{"explain", "198.51.100.7:5555", "203.0.113.10:443/tcp", "--socket", socket}

	term, ended := newTerminal(t), make(chan int, 1)
	go func() { ended <- execute(t.Context(), args, term.command, term.command) }()
	term.shows(t, overwrite+"asking about packet 1 of 1, 1s")
	term.shows(t, ", 2s")
	close(answer)
	if code := <-ended; code != 0 {
		t.Fatalf("it ends with %d", code)
	}
	term.shows(t, overwrite+"STEP")

	var out, complaints strings.Builder
	if code := execute(t.Context(), args, &out, &complaints); code != 0 || complaints.Len() > 0 {
		t.Errorf("without a terminal it ends with %d, and writes %q", code, complaints.String())
	}
}
