package api

import (
	"bytes"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// keptHosts keeps what was put, as it was sent.
type keptHosts struct{ text SetText }

func (k *keptHosts) Segments([]model.Segment) (model.SegmentsStatus, error) {
	return model.SegmentsStatus{Sources: []model.HostSourceStatus{}, Segments: []model.SegmentStatus{{ID: model.Segment{Kind: model.SegmentVXLAN, ID: 5}}}}, nil
}

func (k *keptHosts) PutSegments(text SetText) (PutHosts, error) {
	if string(text.Text) == "wrong" {
		return PutHosts{}, NewProblem(http.StatusUnprocessableEntity, "wrong", FieldProblem{Field: "segments[0].id", Detail: "is wrong"})
	}
	k.text = text
	return PutHosts{Segments: 1, Hosts: 2}, nil
}

// Only administrators say where hosts are: that leads other owners' packets. What is wrong changes nothing.
func TestSegments(t *testing.T) {
	kept := &keptHosts{}
	var log bytes.Buffer
	s := newServer("test", slog.New(slog.NewTextHandler(&log, nil)))
	s.HandleSegments(kept)
	const json, yaml = "application/json", "application/yaml; charset=utf-8"
	for _, test := range []struct {
		role                model.Role
		method, media, text string
		code                int
		body, kept          string
	}{
		{model.RoleRead, "GET", "", "", 200, `"segments":[{"id":"vxlan:5"`, ""},
		{model.RoleRead, "PUT", json, "x", 403, "needs admin", ""},
		{model.RoleWrite, "PUT", json, "x", 403, "needs admin", ""},
		{"", "PUT", json, "x", 401, "", ""},
		{model.RoleAdmin, "PUT", json, "x", 200, `{"segments":1,"hosts":2}`, "x"},
		{model.RoleAdmin, "PUT", yaml, "y", 200, `{"segments":1,"hosts":2}`, "y"},
		{model.RoleAdmin, "PUT", "text/plain", "z", 415, "a list of hosts is sent as", "y"},
		{model.RoleAdmin, "PUT", json, "wrong", 422, `"field":"segments[0].id"`, "y"},
		{model.RoleAdmin, "PUT", json, strings.Repeat("a", hostsBytes+1), 413, "", "y"},
		{model.RoleAdmin, "POST", json, "z", 405, "", "y"},
	} {
		r := httptest.NewRequest(test.method, "/v1/segments", strings.NewReader(test.text))
		if test.media != "" {
			r.Header.Set("Content-Type", test.media)
		}
		w := httptest.NewRecorder()
		s.route(w, r.WithContext(WithCaller(t.Context(), Caller{Name: "who", Role: test.role, Owner: "web"})))
		if w.Code != test.code || !strings.Contains(w.Body.String(), test.body) || string(kept.text.Text) != test.kept {
			t.Errorf("%s as %q with %s %.20q: %d %s, kept %q; want %d, %q, kept %q", test.method, test.role, test.media, test.text, w.Code, w.Body, kept.text.Text, test.code, test.body, test.kept)
		}
	}
	if audit := log.String(); !strings.Contains(audit, "operation=put-segments client=who status=200") || !strings.Contains(audit, "status=422") || strings.Contains(audit, "get-segments") {
		t.Errorf("the log says\n%s", audit)
	}
}

// A client of the configuration is known with its segments, and its answers end when it gets others.
func TestClientsOfSegments(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(strings.Repeat("x", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	red, blue := model.Segment{Kind: model.SegmentVXLAN, ID: 5001}, model.Segment{Kind: model.SegmentVLAN, ID: 100<<12 | 200}
	known := func(in ...model.Segment) Caller {
		a := &access{tokens: map[[sha256.Size]byte]Caller{}, names: map[string]Caller{}}
		if err := a.add(&model.APIClient{Name: "red", Role: model.RoleRead, TokenFile: file, Segments: in}); err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+strings.Repeat("x", 32))
		c, is := a.caller(r)
		if !is {
			t.Fatal("the client is not known")
		}
		return c
	}
	if c := known(); c.limited() || CallerSegments(WithCaller(t.Context(), c)) != nil {
		t.Errorf("a client of no segments is %+v", c)
	}
	if c := known(red, blue); !c.limited() || !slices.Equal(CallerSegments(WithCaller(t.Context(), c)), []model.Segment{red, blue}) {
		t.Errorf("a client of two segments is %+v", c)
	}
	if again := known(red); known(red) == known(blue) || known(red) != again {
		t.Error("clients of different segments are alike, or those of the same are not")
	}
}
