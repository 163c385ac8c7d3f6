package api_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"

	"weir.io/weir/internal/api"
)

const script = "assets/index-abc.js"

// newPages serves files such as the dashboard's.
func newPages() http.Handler {
	d := newDirector()
	server := api.NewServer(d, d, quiet())
	server.HandlePages(fstest.MapFS{
		"index.html": {Data: []byte("<!doctype html>")},
		script:       {Data: []byte(strings.Repeat("console.log(1);\n", 100))},
	})
	return server.Handler()
}

func askPage(handler http.Handler, method, path string, header http.Header) *http.Response {
	r := httptest.NewRequest(method, path, nil)
	r.Header = header
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Result()
}

// The pages may use only files that the director serves, and a file that changes gets another name.
func TestPages(t *testing.T) {
	handler := newPages()
	for _, want := range []struct{ path, kind, caching string }{
		{"/", "text/html; charset=utf-8", "no-cache"},
		{"/" + script, "text/javascript; charset=utf-8", "public, max-age=31536000, immutable"},
	} {
		got := askPage(handler, http.MethodGet, want.path, http.Header{})
		if got.StatusCode != http.StatusOK || got.Header.Get("Content-Type") != want.kind || got.Header.Get("Cache-Control") != want.caching {
			t.Errorf("%s is answered with %d, %v", want.path, got.StatusCode, got.Header)
		}
		policy := got.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "http") || strings.Contains(policy, "*") {
			t.Errorf("%s may do %q", want.path, policy)
		}
		if got.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s may be taken for something else", want.path)
		}
		tag := got.Header.Get("ETag")
		if tag == "" {
			t.Fatalf("%s has no ETag", want.path)
		}
		if again := askPage(handler, http.MethodGet, want.path, http.Header{"If-None-Match": {tag}}); again.StatusCode != http.StatusNotModified {
			t.Errorf("%s is sent again, with %d", want.path, again.StatusCode)
		}
	}
}

func TestPagesArePacked(t *testing.T) {
	handler := newPages()
	plain := askPage(handler, http.MethodGet, "/"+script, http.Header{})
	want, err := io.ReadAll(plain.Body)
	if err != nil {
		t.Fatal(err)
	}
	for accepts, packed := range map[string]bool{"gzip, br": true, "br;q=1, gzip;q=0.5": true, "GZIP": true, "gzip;q=0": false, "gzip; q=0.0": false, "br": false, "": false} {
		got := askPage(handler, http.MethodGet, "/"+script, http.Header{"Accept-Encoding": {accepts}})
		if is := got.Header.Get("Content-Encoding") == "gzip"; is != packed {
			t.Errorf("who accepts %q gets it packed: %v", accepts, is)
			continue
		}
		if same := got.Header.Get("ETag") == plain.Header.Get("ETag"); same == packed {
			t.Errorf("packed or not it has the ETag %s", got.Header.Get("ETag"))
		}
		body := io.Reader(got.Body)
		if packed {
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		if text, err := io.ReadAll(body); err != nil || string(text) != string(want) {
			t.Errorf("who accepts %q gets %d bytes: %v", accepts, len(text), err)
		}
	}
}

// A missing page is a problem document, as without pages.
func TestPagesLeaveTheRestAlone(t *testing.T) {
	handler := newPages()
	for _, want := range []struct {
		method, path string
		status       int
	}{
		{http.MethodGet, "/assets/other.js", http.StatusNotFound},
		{http.MethodGet, "/assets/", http.StatusNotFound},
		{http.MethodGet, "/index.html", http.StatusNotFound},
		{http.MethodGet, "/v1/nothing", http.StatusNotFound},
		{http.MethodPost, "/", http.StatusMethodNotAllowed},
		{http.MethodPut, "/nothing", http.StatusNotFound},
	} {
		got := askPage(handler, want.method, want.path, http.Header{})
		if got.StatusCode != want.status || got.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s is answered with %d, %s; want %d", want.method, want.path, got.StatusCode, got.Header.Get("Content-Type"), want.status)
		}
	}
}
