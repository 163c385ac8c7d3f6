package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// oneOwner keeps sets of one owner.
type oneOwner struct{ text string }

func (o *oneOwner) Put(_ context.Context, owner string, text []byte, dryRun bool) (SetChange, error) {
	if owner != "cli" {
		return SetChange{}, Problem{Title: "Refused", Status: http.StatusUnprocessableEntity, Detail: "not " + owner}
	}
	if string(text) == "full" {
		return SetChange{}, errors.New("no space")
	}
	if !dryRun {
		o.text = string(text)
	}
	return SetChange{Revision: 1, Added: []string{"a"}, Changed: []string{"b"}, Moves: []model.Move{{Service: "b", Slots: 1021, Moved: 307, Held: 2}}}, nil
}

func TestPutSet(t *testing.T) {
	kept := &oneOwner{}
	s := NewServer(nil, nil, slog.New(slog.DiscardHandler))
	ask := func(method, path, text string) (int, string) {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(text)))
		return w.Code, w.Body.String()
	}
	if code, body := ask("PUT", "/v1/sets/cli", "x"); code != http.StatusNotFound || !strings.Contains(body, "ask a director") {
		t.Errorf("an agent answers %d %s", code, body)
	}
	s.HandleSets(kept)
	for _, test := range []struct {
		method, path, text string
		code               int
		body, kept         string
	}{
		{"PUT", "/v1/sets/cli?dry-run", "x", 200, `{"revision":1,"added":["a"],"changed":["b"],"removed":[],"moves":[{"service":"b","slots":1021,"moved":307,"held":2}]}`, ""},
		{"PUT", "/v1/sets/cli", "y", 200, `"added":["a"]`, "y"},
		{"PUT", "/v1/sets/kube", "z", 422, "not kube", "y"},
		{"PUT", "/v1/sets/cli", "full", 500, "no space", "y"},
		{"DELETE", "/v1/sets/cli", "", 405, "can only be put", "y"},
		{"PUT", "/v1/status", "", 405, "can only be read", "y"},
	} {
		code, body := ask(test.method, test.path, test.text)
		if code != test.code || !strings.Contains(body, test.body) || kept.text != test.kept {
			t.Errorf("%s %s %q: %d %s, and %q is kept; want %d %s, and %q",
				test.method, test.path, test.text, code, body, kept.text, test.code, test.body, test.kept)
		}
	}
}
