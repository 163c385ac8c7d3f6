package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// takesAll takes every set.
type takesAll struct{}

func (takesAll) List() []SetInfo          { return nil }
func (takesAll) Get(o string) (Set, bool) { return Set{Tag: "t"}, o == "a" }
func (takesAll) Put(context.Context, string, SetText, Condition) (SetChange, error) {
	return SetChange{Tag: "t"}, nil
}
func (takesAll) Documents(o string) ([]model.Document, bool) { return nil, o == "a" }
func (takesAll) Give(context.Context, string, []byte) (SetChange, error) {
	return SetChange{Tag: "t"}, nil
}
func (takesAll) Plan(context.Context, PlanRequest) (Plan, error) {
	return Plan{SetChange: SetChange{Tag: "t"}}, nil
}

// No request makes the server itself fail, and each refusal is a problem document.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/v1/sets/a", "", "", "", "")
	f.Add("PUT", "/v1/sets/a", "", "application/json", `"x", "y"`, `{"services": []}`)
	f.Add("PUT", "/v1/sets/a", "", "application/yaml; charset=utf-8", `*`, "services: []")
	f.Add("PUT", "/v1/sets/a/documents", "", "application/json", "", `{"documents": []}`)
	f.Add("POST", "/v1/plan", "owner=a&owner=b", "application/json", "", "{}")
	f.Add("GET", "/v1/sets/..%2f", "%", "a/b; c", `W/"`, "\x00")
	s := newServer("test", slog.New(slog.DiscardHandler))
	s.HandleSets(takesAll{})
	s.HandleBGP(func() model.BGPStatus { return model.BGPStatus{} })
	handler := s.Handler()
	f.Fuzz(func(t *testing.T, method, path, query, media, tags, body string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(path, "/") || strings.Contains(method, " ") || method == "" {
			return // net/http's own server refuses it
		}
		r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body))
		r.Method, r.URL = method, u
		r.URL.RawQuery = query
		r.Header = http.Header{"Content-Type": {media}, "If-Match": {tags}, "If-None-Match": {tags}}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if w.Code < 400 {
			return
		}
		var p Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Status != w.Code || w.Header().Get("Content-Type") != problemType {
			t.Fatalf("%d without a problem: %v %q", w.Code, err, w.Body)
		}
	})
}

// A tag is never more than what stands between two quotation marks of the header.
func FuzzTags(f *testing.F) {
	for _, text := range []string{"", "*", `"a"`, `"a", "b"`, `W/"a"`, `"`, `""`, `",", ","`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		tags, any := parseTags(text)
		if any && len(tags) > 0 {
			t.Fatalf("%q is any, and %q", text, tags)
		}
		for _, tag := range tags {
			if !strings.Contains(text, `"`+tag+`"`) || strings.Contains(tag, ",") {
				t.Fatalf("%q has the tag %q", text, tag)
			}
		}
	})
}

// An error about a token's file does not quote the file.
func FuzzTokenFile(f *testing.F) {
	for _, text := range []string{"", "0123456789abcdef\n", "sha256:00", "sha256:" + strings.Repeat("ab", 32), "a\nb"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		digest, err := digestOf([]byte(text))
		secret := strings.TrimSpace(text)
		if err != nil && len(secret) > 8 && strings.Contains(err.Error(), secret) {
			t.Fatalf("the error repeats the token: %v", err)
		}
		if err == nil && len(secret) < leastToken {
			t.Fatalf("%q is a token: %x", text, digest)
		}
	})
}

func (takesAll) Drain(_ context.Context, d Drain) ([]Drained, error) {
	return []Drained{{Owner: d.Owner, Backend: d.Backend, Before: model.Active, State: d.State}}, nil
}
