package api_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// endless is a capture that sends a packet, and goes on until it is told to end; ended has
// why it did.
func endless(ended chan<- string) api.Capturer {
	return func(life context.Context, wanted model.Capture) (api.CaptureRun, error) {
		if wanted.Service == "busy" {
			return nil, api.NewProblem(http.StatusConflict, "a capture runs already")
		}
		return func(ctx context.Context, send func([]model.CaptureMessage) error) error {
			began := time.Unix(0, 0)
			err := send([]model.CaptureMessage{{Began: &began}, {Packet: &model.CapturedPacket{Number: 1, Reason: wanted.Reasons[0], In: make(model.Hex, wanted.Snap)}}})
			if err != nil {
				return err
			}
			<-life.Done()
			why := "director"
			if ctx.Err() != nil {
				why = "client"
			}
			ended <- why
			return send([]model.CaptureMessage{{Counts: &model.CaptureCounts{Lost: 7}, Ended: why}})
		}, nil
	}
}

// A capture ends with its client, and with its director, which says so.
func TestCapture(t *testing.T) {
	d := newDirector()
	ended := make(chan string, 1)
	wanted := model.Capture{Reasons: []string{"drop_no_backend"}}
	begin := func(ctx context.Context, client *api.Client) (heard chan model.CaptureMessage, done chan error) {
		heard, done = make(chan model.CaptureMessage, 10), make(chan error, 1)
		go func() {
			done <- client.Capture(ctx, wanted, func(m *model.CaptureMessage) error { heard <- *m; return nil })
		}()
		if m := receive(t, heard); m.Began == nil {
			t.Fatalf("first is said %+v", m)
		}
		if m := receive(t, heard); m.Packet == nil || m.Packet.Reason != "drop_no_backend" || len(m.Packet.In) != model.CaptureSnap {
			t.Fatalf("of the packet is said %+v", m.Packet)
		}
		return heard, done
	}
	server := api.NewServer(d, d, quiet())
	server.HandleCapture(endless(ended))
	client := serve(t, server)

	ctx, leave := context.WithCancel(t.Context())
	_, done := begin(ctx, client)
	leave()
	if err := receive(t, done); err != nil {
		t.Error("a client that leaves hears", err)
	}
	if why := receive(t, ended); why != "client" {
		t.Errorf("a capture whose client has left ends with %s", why)
	}

	running, stop := context.WithCancel(t.Context())
	socket := t.TempDir() + "/director.sock"
	listener, err := api.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	other, served := api.NewServer(d, d, quiet()), make(chan error, 1)
	other.HandleCapture(endless(ended))
	go func() { served <- other.Serve(running, listener) }()
	heard, done := begin(t.Context(), api.NewClient(socket))
	stop()
	if m := receive(t, heard); m.Ended != "director" || m.Counts == nil || m.Counts.Lost != 7 {
		t.Errorf("last is said %+v", m)
	}
	if err := errors.Join(receive(t, done), receive(t, served)); err != nil {
		t.Error("the end of a director, and of its capture:", err)
	}
	receive(t, ended)
}

func receive[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(patience):
		t.Fatal("waited in vain")
	}
	return value
}

// A capture is refused before the answer begins.
func TestCaptureRefused(t *testing.T) {
	d := newDirector()
	server := api.NewServer(d, d, quiet())
	server.HandleCapture(endless(nil))
	for _, test := range []struct {
		body   string
		status int
		want   string
	}{
		{`{"service": "busy"}`, http.StatusConflict, "a capture runs already"},
		{`{"snap": 10}`, http.StatusUnprocessableEntity, "snap"},
		{`{"packets": -1}`, http.StatusUnprocessableEntity, "packets"},
		{`{"filter": "tcp"}`, http.StatusUnprocessableEntity, "filter"},
		{`{"duration": "long"}`, http.StatusUnprocessableEntity, "duration"},
	} {
		w := httptest.NewRecorder()
		server.Handler().ServeHTTP(w, httptest.NewRequest("POST", "/v1/capture", strings.NewReader(test.body)))
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%s is answered with %d %s, want %d and %q", test.body, w.Code, w.Body, test.status, test.want)
		}
	}
}
