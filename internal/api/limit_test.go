package api

import (
	"crypto/sha256"
	"log/slog"
	"net/http"
	"net/http/httptest"
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
