package api_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// questions are of each kind that a client asks.
func questions(c *api.Client) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"status": func(ctx context.Context) error { _, err := c.Status(ctx); return err },
		"sets":   func(ctx context.Context) error { _, err := c.Sets(ctx); return err },
		"drain":  func(ctx context.Context) error { _, err := c.Drain(ctx, api.Drain{}); return err },
		"events": func(ctx context.Context) error {
			return c.Events(ctx, api.EventQuery{Follow: true}, func(api.Event) error { return nil })
		},
		"capture": func(ctx context.Context) error {
			return c.Capture(ctx, model.Capture{}, func(*model.CaptureMessage) error { return nil })
		},
	}
}

// holdSocket is what the process of TestStoppedProcessIsNamed does: it has the socket.
func holdSocket(path string) {
	listener, err := net.Listen("unix", path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listens")
	// A process in which all goroutines wait for nothing ends, and a listener that nothing uses is closed.
	fmt.Println(http.Serve(listener, nil))
	os.Exit(1)
}

const heldSocket = "WEIR_TEST_HELD_SOCKET"

func init() {
	if path := os.Getenv(heldSocket); path != "" {
		holdSocket(path)
	}
}

// A process that is stopped has its socket still, and the kernel takes connections for it. A
// client is told which process that is, and does not wait longer.
func TestStoppedProcessIsNamed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "run.sock")
	holder := exec.CommandContext(t.Context(), os.Args[0])
	holder.Env = append(os.Environ(), heldSocket+"="+path)
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 100)); err != nil { // it listens
		t.Fatal(err)
	}
	if err := holder.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for name, ask := range questions(api.NewClient(path)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := ask(t.Context())
			if !errors.Is(err, api.ErrSilent) || !errors.Is(err, api.ErrUnreachable) || !strings.Contains(err.Error(), fmt.Sprintf("process %d has this socket and is stopped", holder.Process.Pid)) {
				t.Errorf("it says %v", err)
			}
		})
	}
}

// A process that takes no connection although it runs, as one without file descriptors, has its
// socket still, and the kernel takes connections for it. A question that changes nothing waits 15 s,
// also one whose answer is a stream.
func TestSilentProcessIsNamed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "run.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	ask := questions(api.NewClient(path))
	for _, name := range []string{"status", "events"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := ask[name](t.Context())
			if !errors.Is(err, api.ErrSilent) || !strings.Contains(err.Error(), fmt.Sprintf("process %d has this socket and has not answered within", os.Getpid())) {
				t.Errorf("it says %v", err)
			}
		})
	}
}

// Another program's socket is called that, whatever it answers.
func TestForeignSocketIsNamed(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"other JSON": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"containers": 3}`) },
		"a page":     func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `<html>hello`) },
		"hangs up":   func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "other.sock")
			listener, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: answer}
			t.Cleanup(func() { server.Close() })
			go server.Serve(listener)
			for _, question := range []string{"status", "sets", "drain"} {
				err := questions(api.NewClient(path))[question](t.Context())
				if !errors.Is(err, api.ErrUnreachable) || !strings.Contains(err.Error(), "not as a weir director or agent") && !strings.Contains(err.Error(), "does not answer as a weir director or agent") {
					t.Errorf("%s says %v", question, err)
				}
			}
		})
	}
}
