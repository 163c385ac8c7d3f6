package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

func TestExplain(t *testing.T) {
	s := NewServer(nil, nil, slog.New(slog.DiscardHandler))
	ask := func(method, text string) (int, string) {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(method, "/v1/explain", strings.NewReader(text)))
		return w.Code, w.Body.String()
	}
	if code, _ := ask("POST", "{}"); code != http.StatusNotFound {
		t.Errorf("an agent answers %d", code)
	}
	want := model.Question{Source: netip.MustParseAddrPort("198.51.100.7:5555"), Destination: netip.MustParseAddrPort("203.0.113.10:443"),
		Protocol: "tcp", Flags: []string{"syn"}, Segment: model.Segment{Kind: model.SegmentVLAN, ID: 7}, Payload: model.Hex{0, 0xab}}
	s.HandleExplain(func(_ context.Context, q model.Question) (model.Explanation, error) {
		switch {
		case q.Protocol == "dccp":
			return model.Explanation{}, NewProblem(http.StatusUnprocessableEntity, "protocol: unknown")
		case !reflect.DeepEqual(q, want):
			return model.Explanation{}, errors.New("not what was asked")
		}
		return model.Explanation{Interface: "eth0", Reason: "drop_no_backend", Outcome: model.OutcomeDrop}, nil
	})
	for _, test := range []struct {
		method, text string
		code         int
		body         string
	}{
		{"POST", `{"source":"198.51.100.7:5555","destination":"203.0.113.10:443","protocol":"tcp","flags":["syn"],"segment":"vlan:7","payload":"00ab"}`,
			200, `{"interface":"eth0","frame":"","reason":"drop_no_backend","outcome":"drop","steps":[]}`},
		{"POST", `{"protocol":"dccp"}`, 422, "protocol: unknown"},
		{"POST", `{"protocol":"udp"}`, 500, "not what was asked"},
		{"POST", `{"port":7}`, 422, `"field":"port","detail":"unexpected property"`},
		{"POST", `{"frame":"0g"}`, 422, "bytes in hexadecimal"},
		{"POST", `{"payload":"` + strings.Repeat("00", 1<<20) + `"}`, 413, "too large"},
		{"GET", "", 405, "is only for POST"},
	} {
		if code, body := ask(test.method, test.text); code != test.code || !strings.Contains(body, test.body) {
			t.Errorf("%s %.60s: %d %s, want %d %s", test.method, test.text, code, body, test.code, test.body)
		}
	}
}

// A reader may ask about the current sets, and a writer also about a change of its own set.
func TestExplainNeeds(t *testing.T) {
	s := NewServer(nil, nil, slog.New(slog.DiscardHandler))
	s.HandleExplain(func(context.Context, model.Question) (model.Explanation, error) { return model.Explanation{}, nil })
	for _, test := range []struct {
		caller Caller
		text   string
		code   int
	}{
		{Caller{Name: "r", Role: model.RoleRead}, `{}`, 200},
		{Caller{Name: "r", Role: model.RoleRead}, `{"with":{"owner":"cli","services":[]}}`, 403},
		{Caller{Name: "w", Role: model.RoleWrite, Owner: "kube"}, `{"with":{"owner":"cli","services":[]}}`, 403},
		{Caller{Name: "w", Role: model.RoleWrite, Owner: "cli"}, `{"with":{"owner":"cli","services":[]}}`, 200},
		{Caller{Name: "a", Role: model.RoleAdmin}, `{"with":{"owner":"cli","services":[]}}`, 200},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/v1/explain", strings.NewReader(test.text))
		r.Header.Set("Content-Type", "application/json")
		s.route(w, r.WithContext(WithCaller(r.Context(), test.caller)))
		if w.Code != test.code {
			t.Errorf("%s %s: %d %s, want %d", test.caller.Name, test.text, w.Code, w.Body, test.code)
		}
	}
}

// FuzzQuestion: whatever is posted, the answer is one, or a problem document.
func FuzzQuestion(f *testing.F) {
	f.Add(`{"source":"198.51.100.7:5555","destination":"203.0.113.10:443","protocol":"tcp"}`)
	f.Add(`{"frame":"00","segment":"vlan:4095.1"}`)
	s := NewServer(nil, nil, slog.New(slog.DiscardHandler))
	s.HandleExplain(func(context.Context, model.Question) (model.Explanation, error) { return model.Explanation{}, nil })
	f.Fuzz(func(t *testing.T, text string) {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest("POST", "/v1/explain", strings.NewReader(text)))
		if w.Code != 200 && w.Header().Get("Content-Type") != problemType || w.Code >= 500 {
			t.Errorf("%q: %d %s", text, w.Code, w.Body)
		}
	})
}
