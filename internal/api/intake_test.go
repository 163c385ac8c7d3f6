package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// One set is read at a time: another one waits, and is told to come again where it waits too long.
func TestOneSetIsReadAtATime(t *testing.T) {
	r := NewReading()
	reading, end, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		_, err := r.Do(t.Context(), func() (int, error) { close(reading); <-end; return 1, nil })
		ended <- err
	}()
	<-reading
	r.wait = 0
	_, err := r.Do(t.Context(), func() (int, error) { t.Error("two sets are read at once"); return 0, nil })
	isBusy(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.wait = time.Hour
	if _, err := r.Do(ctx, func() (int, error) { t.Error("two sets are read at once"); return 0, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that goes away hears %v", err)
	}
	close(end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := r.Do(t.Context(), func() (int, error) { return 1, nil }); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// The memory that sets take together before they are applied is bounded. One set alone is
// never too large.
func TestSetsThatAreNotApplied(t *testing.T) {
	r := NewReading()
	r.most = 100
	of := func(who Caller, size int) (func(), error) {
		return r.Do(WithCaller(t.Context(), who), func() (int, error) { return size, nil })
	}
	do := func(size int) (func(), error) { return of(Caller{Name: "busy"}, size) }
	first, err := do(150)
	if err != nil {
		t.Fatalf("one alone: %v", err)
	}
	_, err = do(1)
	isBusy(t, err)
	first()
	for range 2 {
		if _, err = do(25); err != nil {
			t.Fatal(err)
		}
	}
	_, err = do(1) // as much as it leaves
	isBusy(t, err)
	second, err := of(Caller{Name: "calm"}, 25)
	if err != nil {
		t.Errorf("another client's set: %v", err)
	}
	_, err = of(Caller{Name: "third"}, 13)
	isBusy(t, err)
	if _, err = of(Caller{Name: "third"}, 12); err != nil {
		t.Errorf("a third client's set: %v", err)
	}
	second()
	if r.of["calm"] != 0 || r.held != 62 {
		t.Errorf("what is applied holds %d still, of %d", r.of["calm"], r.held)
	}

	r = NewReading()
	r.most = 100
	_, err = of(Caller{Name: "red", Segments: "vlan:7"}, 51)
	isBusy(t, err)
	r = NewReading()
	if _, err := r.Do(t.Context(), func() (int, error) { return 0, errors.New("wrong") }); err == nil || err.Error() != "wrong" {
		t.Errorf("what is wrong with a set is %v", err)
	}
}

// The next set is that of the client whose sets have taken the least time: one that sends without end
// delays others by one set.
func TestClientsTakeTurnsToBeRead(t *testing.T) {
	r := NewReading()
	r.spent = map[string]time.Duration{"busy": time.Second, "calm": time.Millisecond}
	r.halved = time.Now()
	end, order := make(chan struct{}), make(chan string, 10)
	do := func(client string) {
		_, err := r.Do(WithCaller(t.Context(), Caller{Name: client}), func() (int, error) { order <- client; <-end; return 0, nil })
		if err != nil {
			t.Error(err)
		}
	}
	waits := func(n int) {
		t.Helper()
		for tried := 0; ; tried++ {
			r.mu.Lock()
			waiting := len(r.waiting)
			r.mu.Unlock()
			if waiting == n {
				return
			}
			if tried == 10_000 {
				t.Fatalf("%d sets wait, want %d", waiting, n)
			}
			time.Sleep(time.Millisecond) // between two looks
		}
	}
	go do("busy")
	if first := <-order; first != "busy" {
		t.Fatalf("first is %s", first)
	}
	for i, client := range []string{"busy", "busy", "busy", "calm", "new"} {
		go do(client)
		waits(i + 1)
	}
	close(end)
	var got []string
	for range 5 {
		got = append(got, <-order)
	}
	if want := "new calm busy busy busy"; strings.Join(got, " ") != want {
		t.Errorf("they are read in the order %v, want %s", got, want)
	}
}

func isBusy(t *testing.T, err error) {
	t.Helper()
	var status interface{ GetStatus() int }
	var headers interface{ GetHeaders() http.Header }
	if !errors.As(err, &status) || status.GetStatus() != http.StatusServiceUnavailable || !errors.As(err, &headers) || headers.GetHeaders().Get("Retry-After") == "" {
		t.Errorf("it is answered with %v, want 503 and Retry-After", err)
	}
}

// Bodies take room as they come, and not as they are announced; one client's no more than one
// set's, so that another one has room still.
func TestBodiesAreBounded(t *testing.T) {
	all := newBodies()
	for range 4 {
		b := &body{of: all, client: "busy"}
		if text, err := b.read(io.LimitReader(zeros{}, 1<<20)); err != nil || len(text) != 1<<20 {
			t.Fatalf("a body of a MiB is %d bytes, %v", len(text), err)
		}
		if b.held < 1<<20 || b.held > 2<<20 {
			t.Errorf("a body of a MiB takes %d", b.held)
		}
	}
	last := &body{of: all, client: "busy"}
	if !last.take(setBytes - all.held) {
		t.Fatal("there is no room for one set")
	}
	if _, err := (&body{of: all, client: "busy"}).read(zeros{}); err == nil {
		t.Error("one client has room for more than one set")
	} else {
		isBusy(t, err)
	}
	other := &body{of: all, client: "calm"}
	if _, err := other.read(strings.NewReader("{}")); err != nil {
		t.Errorf("another client: %v", err)
	}
	if !other.take(setBytes/4) || (&body{of: all, client: "third"}).take(setBytes/8*3+1) { // a half of what is left
		t.Error("what all have together is not bounded")
	}
	last.end()
	other.end()
	if all.of["calm"] != 0 || all.held != all.of["busy"] {
		t.Errorf("what has ended takes %d still, %v", all.held, all.of)
	}
}

// TestLongestBody: where nobody else sends, there is room for the longest set that may be sent.
func TestLongestBody(t *testing.T) {
	all := newBodies()
	b := &body{of: all, client: "alone"}
	if text, err := b.read(io.LimitReader(zeros{}, setBytes)); err != nil || len(text) != setBytes {
		t.Errorf("of a body of %d bytes %d are read: %v", setBytes, len(text), err)
	}
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// A body that there is no room for is answered with 503 and Retry-After.
func TestNoRoomForABody(t *testing.T) {
	s := newServer("test", slog.New(slog.DiscardHandler))
	s.HandleSets(takesAll{})
	full := &body{of: s.bodies, client: "local"}
	full.take(setBytes)
	put := func() *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPut, "/v1/sets/a", strings.NewReader(strings.Repeat(" ", 1<<16)))
		r.Header.Set("Content-Type", "application/yaml")
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w
	}
	if w := put(); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("without room it is answered with %d %v %s", w.Code, w.Header(), w.Body)
	}
	full.end()
	if w := put(); w.Code != http.StatusOK || s.bodies.held != 0 {
		t.Errorf("with room it is answered with %d %s, and %d bytes are held", w.Code, w.Body, s.bodies.held)
	}
}
