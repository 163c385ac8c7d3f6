package api

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

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
		r := httptest.NewRequestWithContext(withCaller(t.Context(), Caller{Name: name, Role: "read"}), http.MethodGet, "/v1/flows"+query, nil)
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
