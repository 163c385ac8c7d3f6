package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// A client that asks all the time is told to wait, and others are not.
func TestRateLimit(t *testing.T) {
	r := NewRemote(newServer("test", slog.New(slog.DiscardHandler)), slog.New(slog.DiscardHandler))
	defer r.Close()
	r.access.Store(&access{tokens: map[[sha256.Size]byte]Caller{
		sha256.Sum256([]byte("busy")): {Name: "busy", Role: model.RoleAdmin}, sha256.Sum256([]byte("calm")): {Name: "calm", Role: model.RoleAdmin}}})
	ask := func(token string) *httptest.ResponseRecorder {
		request := httptest.NewRequest(http.MethodGet, "/v1/none", nil)
		request.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		r.checked(w, request)
		return w
	}
	limited := false
	for n := 0; n < 100*callerBurst && !limited; n++ {
		w := ask("busy")
		limited = w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") != ""
	}
	if !limited {
		t.Errorf("%d requests in a row are answered", 100*callerBurst)
	}
	if w := ask("calm"); w.Code != http.StatusNotFound {
		t.Errorf("another client is answered with %d", w.Code)
	}
}

// Strangers that ask too often wait, and there is a bound on how many are remembered.
func TestStrangersAreBounded(t *testing.T) {
	p := newPaces(time.Second/strangerRate, strangerBurst, mostStrangers)
	waits := false
	for n := 0; n < 100*strangerBurst && !waits; n++ {
		waits = !p.take("192.0.2.1")
	}
	if !waits || !p.take("192.0.2.2") {
		t.Errorf("one who asks all the time waits: %v, and another one does, too", waits)
	}
	for n := range 3 * mostStrangers {
		p.take(string(rune(n)))
	}
	if got := len(p.of); got > mostStrangers {
		t.Errorf("%d strangers are remembered, more than %d", got, mostStrangers)
	}
}

// A client that has used up its operations has to wait, and not longer if it keeps
// asking. No other client has to wait.
func TestPaces(t *testing.T) {
	p := newPaces(time.Hour, 3, noBound)
	for n := range 3 {
		if wait := p.wait("busy"); wait != 0 {
			t.Errorf("number %d has to wait %v", n, wait)
		}
		p.take("busy")
	}
	for range 1000 {
		if wait := p.wait("busy"); wait <= 0 || wait > time.Hour {
			t.Fatalf("one more has to wait %v, want up to an hour", wait)
		}
	}
	if wait := p.wait("calm"); wait != 0 {
		t.Errorf("another one has to wait %v", wait)
	}
}

// A client that listens leaves as many places to others as it has; tenants take none from other clients, and
// neither take any from administrators.
func TestListenersShareTheirPlaces(t *testing.T) {
	server := newServer("weir", slog.New(slog.DiscardHandler))
	server.HandleEvents(NewEvents())
	listen := func(c Caller, want int) {
		t.Helper()
		ctx, end := context.WithCancel(WithCaller(t.Context(), c))
		w := newListener()
		ended := make(chan struct{})
		go func() {
			server.route(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/events", nil))
			close(ended)
		}()
		t.Cleanup(func() { end(); <-ended })
		if got := <-w.status; got != want {
			t.Fatalf("a listener of %s is answered with %d, want %d", c.Name, got, want)
		}
	}
	admin, reader := Caller{Name: "root", Role: model.RoleAdmin}, Caller{Name: "reader", Role: model.RoleRead}
	red, blue := Caller{Name: "red", Role: model.RoleRead, Segments: "vlan:7"}, Caller{Name: "blue", Role: model.RoleRead, Segments: "vlan:8"}
	for range mostListeners / 2 {
		listen(red, http.StatusOK)
	}
	listen(red, http.StatusTooManyRequests)
	for range mostListeners / 4 {
		listen(blue, http.StatusOK)
	}
	listen(blue, http.StatusTooManyRequests)
	for range mostListeners / 2 {
		listen(reader, http.StatusOK)
	}
	listen(reader, http.StatusTooManyRequests)
	for range mostListeners {
		listen(admin, http.StatusOK)
	}
	listen(admin, http.StatusTooManyRequests)
}

// listener is where an answer goes that does not end: it tells its status, once.
type listener struct {
	http.ResponseWriter
	status chan int
	once   sync.Once
}

func newListener() *listener {
	return &listener{ResponseWriter: httptest.NewRecorder(), status: make(chan int, 1)}
}

func (l *listener) tell(status int) { l.once.Do(func() { l.status <- status }) }

func (l *listener) WriteHeader(status int) {
	l.tell(status)
	l.ResponseWriter.WriteHeader(status)
}

func (l *listener) Write(p []byte) (int, error) {
	l.tell(http.StatusOK)
	return l.ResponseWriter.Write(p)
}

func (l *listener) Flush() { l.tell(http.StatusOK) }

// A client that is for some segments alone reads one answer at a time, and takes no place from others.
func TestTenantsAnswersAreLarge(t *testing.T) {
	server := newServer("weir", slog.New(slog.DiscardHandler))
	server.largeWait = 0
	stuck, began := make(chan struct{}), make(chan struct{})
	read := func(ctx context.Context) ([]string, error) {
		if callerOf(ctx).Name != "calm" {
			began <- struct{}{}
			<-stuck
		}
		return nil, nil
	}
	readSegmented(server, "slow", "a test's", read)
	server.HandleSegmented("/slow", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	ask := func(name, path string, segments segmentSet) int {
		w := httptest.NewRecorder()
		server.route(w, httptest.NewRequestWithContext(WithCaller(t.Context(), Caller{Name: name, Role: model.RoleRead, Segments: segments}), http.MethodGet, path, nil))
		return w.Code
	}
	ended := make(chan int)
	for n := range largeAnswers {
		go func() { ended <- ask(fmt.Sprint("red", n), "/v1/slow", "vlan:7") }()
		<-began
	}
	for _, path := range []string{"/v1/slow", "/slow"} {
		for _, name := range []string{"red0", "calm"} { // one more of the same client, and one more of all tenants
			if got := ask(name, path, "vlan:7"); got != http.StatusServiceUnavailable {
				t.Errorf("GET %s of %s is answered with %d", path, name, got)
			}
		}
		if got := ask("calm", path, ""); got != http.StatusOK {
			t.Errorf("GET %s of no tenant is answered with %d", path, got)
		}
	}
	close(stuck)
	for range largeAnswers {
		if got := <-ended; got != http.StatusOK {
			t.Errorf("a slow one is answered with %d", got)
		}
	}
}

// A client that does not read its large answers keeps nobody else from one, and hears soon that it has
// to wait itself.
func TestLargeAnswersOfOneClient(t *testing.T) {
	server := newServer("weir", slog.New(slog.DiscardHandler))
	server.largeWait = 0
	stuck, began := make(chan struct{}), make(chan struct{})
	server.HandleFlows(func(_ context.Context, q FlowQuery) (Flows, error) {
		if q.Service == "stuck" {
			began <- struct{}{}
			<-stuck
		}
		return Flows{}, nil
	})
	ask := func(name, query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(WithCaller(t.Context(), Caller{Name: name, Role: "read"}), http.MethodGet, "/v1/flows"+query, nil)
		server.route(w, r)
		return w
	}
	ended := make(chan int)
	for range largeOfOneName {
		go func() { ended <- ask("hog", "?service=stuck").Code }()
		<-began
	}
	w := ask("hog", "")
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "ask again") {
		t.Errorf("one more of the same client is answered with %d: %s", w.Code, w.Body)
	}
	if w := ask("other", ""); w.Code != http.StatusOK {
		t.Errorf("another client is answered with %d: %s", w.Code, w.Body)
	}
	close(stuck)
	for range largeOfOneName {
		if code := <-ended; code != http.StatusOK {
			t.Errorf("what was under way ends with %d", code)
		}
	}
	if w := ask("hog", ""); w.Code != http.StatusOK {
		t.Errorf("when its answers are read the client gets %d: %s", w.Code, w.Body)
	}
}

// A client that reads only the detail is told which field is wrong and what would be right.
func TestDetailNamesTheField(t *testing.T) {
	server := newServer("weir", slog.New(slog.DiscardHandler))
	server.HandleFlows(func(context.Context, FlowQuery) (Flows, error) { return Flows{}, nil })
	w := httptest.NewRecorder()
	server.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/flows?limit=1000000", nil))
	if want := `"detail":"query.limit: expected number <= 100000"`; w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), want) {
		t.Errorf("it is answered with %d: %s; want %s", w.Code, w.Body, want)
	}
}
