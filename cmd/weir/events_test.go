package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// Events tell what happens to a director: changes of sets and of its file, refusals, and the death
// of a backend.
func TestEvents(t *testing.T) {
	h := newHost(t)
	listener, err := h.backend.Listen("tcp", "10.0.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	head := "coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}}"
	h.configure(head, "mine")
	p := h.start("director runs")
	client := api.NewClient(h.socket)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var heard []api.Event
	ended := make(chan error, 1)
	go func() {
		ended <- client.Events(ctx, api.EventQuery{Last: 1000, Follow: true}, func(e api.Event) error {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, e)
			return nil
		})
	}()
	hears := func(what string, is func(api.Event) bool) {
		t.Helper()
		p.wait("tell that "+what, func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range heard {
				if is(e) {
					return true
				}
			}
			return false
		})
	}
	const checked = "services: [{name: web, vip: 203.0.113.10, protocol: tcp, port: 80, mode: l2dsr, " +
		"health: {kind: tcp, to: address, interval: 100ms, timeout: 90ms, rise: 1, fall: 1}, backends: [{name: a, address: 10.0.0.2}]}]"
	change, err := client.PutSet(t.Context(), "cli", api.SetText{Text: []byte(checked)}, api.Condition{})
	if err != nil {
		t.Fatal(err)
	}
	hears("there is a set", func(e api.Event) bool {
		return e.Kind == api.EventSet && e.Owner == "cli" && e.Revision == change.Revision && e.Text == `owner "cli" has another set, of 1 service: added web`
	})
	p.wait("find the backend well", func() bool {
		backends, err := client.Backends(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range backends {
			if b.Name == "a" && b.Health != nil && b.Health.State == model.HealthUp {
				return true
			}
		}
		return false
	})
	listener.Close()
	hears("the backend is dead", func(e api.Event) bool {
		return e.Kind == api.EventHealth && e.Service == "web" && e.State == "down" && strings.Contains(e.Text, "backend a of service web is down: ")
	})
	if listener, err = h.backend.Listen("tcp", "10.0.0.2:80"); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	hears("the backend lives again", func(e api.Event) bool {
		return e.Kind == api.EventHealth && e.Text == "backend a of service web is up" && e.State == "up"
	})
	if err := os.WriteFile(h.file, []byte("nonsense"), 0o644); err != nil {
		t.Fatal(err)
	}
	hears("the file is refused", func(e api.Event) bool {
		return e.Kind == api.EventProblem && e.State == api.ProblemRaised && e.Problem.Kind == model.ProblemFile && e.Problem.File != "" && strings.Contains(e.Text, "weir.yaml")
	})
	h.configure(head, "mine", "yours")
	hears("the file is good again", func(e api.Event) bool {
		return e.Kind == api.EventProblem && e.State == api.ProblemResolved && e.Problem.Kind == model.ProblemFile
	})
	hears("the file is another one", func(e api.Event) bool {
		return e.Kind == api.EventFile && strings.HasSuffix(e.Text, "other services, 2: added yours")
	})
	var listed bytes.Buffer
	if code := execute(t.Context(), []string{"events", "--last", "2", "--socket", h.socket}, &listed, &listed); code != 0 || strings.Count(listed.String(), "\n") != 3 ||
		!strings.HasPrefix(listed.String(), "TIME ") || !strings.Contains(listed.String(), "other services, 2") {
		t.Errorf("weir events ends with %d, and the last two are\n%s", code, &listed)
	}
	if out, err := h.weir("drain", "mine/10.0.0.2", "--socket", h.socket).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	hears("the backend is drained", func(e api.Event) bool {
		return e.Kind == api.EventOverride && e.State == "draining" && strings.HasPrefix(e.Text, "backend 10.0.0.2 of service mine is draining by ") && strings.HasSuffix(e.Text, ", beside the director's file")
	})
	if out, err := h.weir("undrain", "mine/10.0.0.2", "--socket", h.socket).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	hears("it gets connections again", func(e api.Event) bool {
		return e.Kind == api.EventOverride && e.Text == "backend 10.0.0.2 of service mine has the state again that the director's file gives it"
	})
	mu.Lock()
	for _, e := range heard {
		if e.Kind == api.EventFile && strings.Contains(e.Text, "changed mine") {
			t.Errorf("a drain is told as a change of the file: %s", e.Text)
		}
	}
	mu.Unlock()
	followed, goes := make(chan int, 1), &lockedBuffer{}
	go func() {
		followed <- execute(t.Context(), []string{"events", "--follow", "--last", "1000", "-o", "json", "--socket", h.socket}, goes, goes)
	}()
	h.configure(head, "mine")
	p.wait("tell that the file is another one again", func() bool { return strings.Contains(goes.String(), "other services, 1: removed yours") })
	p.stop()
	if code := <-followed; code != 0 || strings.Count(goes.String(), "\n") != strings.Count(goes.String(), `{"id":`) {
		t.Errorf("at the director's end weir events --follow ends with %d:\n%s", code, goes)
	}
	if err := <-ended; err != nil {
		t.Error("when the director ends who listens hears", err)
	}
}

// lockedBuffer is written by a command while a test reads it.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write keeps what is written.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns what was written.
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
