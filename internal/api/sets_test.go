package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// oneOwner keeps the set of one owner, as it was sent.
type oneOwner struct{ text string }

func (o *oneOwner) List() []SetInfo { return []SetInfo{{Owner: "cli", ETag: `"t"`}} }

func (o *oneOwner) Get(owner string) (Set, bool) {
	key := model.QUICKey{1}
	return Set{Tag: "t", Revision: 7, Services: []model.Service{{Name: o.text, QUIC: []model.QUICConfig{{Key: key}}}}}, owner == "cli"
}

func (o *oneOwner) Put(_ context.Context, owner string, text SetText, when Condition) (SetChange, error) {
	switch {
	case owner != "cli":
		return SetChange{}, NewProblem(http.StatusConflict, "not "+owner, FieldProblem{Field: "services[0].vip", Detail: "taken"})
	case string(text.Text) == "full":
		return SetChange{}, errors.New("no space")
	case when.None || len(when.Tags) > 0 && !slices.Contains(when.Tags, "t"):
		return SetChange{}, NewProblem(http.StatusPreconditionFailed, "another one")
	}
	if o.text = string(text.Text); text.Part != 1 {
		o.text += fmt.Sprintf(" in part %g", text.Part)
	}
	plan, err := o.Plan(context.Background(), PlanRequest{Owner: owner, SetText: text})
	return plan.SetChange, err
}

func (o *oneOwner) Documents(owner string) ([]model.Document, bool) {
	set, found := o.Get(owner)
	return []model.Document{{Service: set.Services[0], Log: model.Log{Generations: []model.Generation{{Number: 7, Affinity: model.AffinitySourceIP}}}}}, found
}

func (o *oneOwner) Give(_ context.Context, owner string, text []byte) (SetChange, error) {
	o.text = "with logs " + string(text)
	return SetChange{Tag: "u"}, nil
}

func (o *oneOwner) Plan(_ context.Context, r PlanRequest) (Plan, error) {
	change := SetChange{Revision: 1, Tag: "u", Added: []string{"a"}, Changed: []string{"b"}, Moves: []model.Move{{Service: "b", Slots: 1021, Moved: 307, Held: 2}}}
	return Plan{SetChange: change, Base: "t", Measured: model.Duration(r.Measure), Services: []model.PlannedService{{Service: "b", Change: "changed"}}}, nil
}

const oneChange = `{"revision":1,"added":["a"],"changed":["b"],"removed":[],"moves":[{"service":"b","slots":1021,"moved":307,"held":2}]`

func TestSets(t *testing.T) {
	kept := &oneOwner{}
	s := newServer("test", slog.New(slog.DiscardHandler))
	s.HandleSets(kept)
	const json, yaml = "application/json", "application/yaml; charset=utf-8"
	for _, test := range []struct {
		method, path, media, header, text string
		code                              int
		body, kept                        string
	}{
		{"POST", "/v1/plan?owner=cli", json, "", "x", 200, oneChange, ""},
		{"POST", "/v1/plan?owner=cli&measure=2", json, "", "x", 200, `"base":"t","measured":"2s","services":[{"service":"b","change":"changed","slots":0,"moved":0,"held":0,"backends":[],"risks":[]}],"limits":[]}`, ""},
		{"PUT", "/v1/sets/cli?part=0", json, "", "n", 422, `"field":"query.part"`, ""},
		{"PUT", "/v1/sets/cli?part=1.5", json, "", "n", 422, `"field":"query.part"`, ""},
		{"PUT", "/v1/sets/cli?part=NaN", json, "", "n", 422, `"field":"query.part"`, ""},
		{"POST", "/v1/plan?owner=cli&part=-1", json, "", "n", 422, `"field":"query.part"`, ""},
		{"POST", "/v1/plan?owner=cli&measure=11", json, "", "x", 422, `"field":"query.measure"`, ""},
		{"POST", "/v1/plan", json, "", "x", 422, `"field":"query.owner"`, ""},
		{"POST", "/v1/plan?owner=cli&who=me", json, "", "x", 422, "unknown query parameter", ""},
		{"PUT", "/v1/sets/cli", json, "", "y", 200, oneChange + "}", "y"},
		{"PUT", "/v1/sets/cli?part=0.25", yaml, "", "z", 200, `"added":["a"]`, "z in part 0.25"},
		{"PUT", "/v1/sets/cli", yaml, "", "z", 200, `"added":["a"]`, "z"},
		{"PUT", "/v1/sets/cli", "text/plain", "", "n", 415, "application/yaml", "z"},
		{"PUT", "/v1/sets/cli", "", "", "n", 415, "application/yaml", "z"},
		{"PUT", "/v1/sets/kube", json, "", "n", 409, `"errors":[{"field":"services[0].vip","detail":"taken"}]`, "z"},
		{"PUT", "/v1/sets/Kube", json, "", "n", 422, `"field":"path.owner"`, "z"},
		{"PUT", "/v1/sets/cli", json, "", "full", 500, "no space", "z"},
		{"PUT", "/v1/sets/cli", json, `If-Match: "other"`, "n", 412, "another one", "z"},
		{"PUT", "/v1/sets/cli", json, `If-Match: W/"t"`, "n", 400, "header.If-Match", "z"},
		{"PUT", "/v1/sets/cli", json, `If-None-Match: *`, "n", 412, "another one", "z"},
		{"PUT", "/v1/sets/cli", json, `If-None-Match: "t"`, "n", 400, "header.If-None-Match", "z"},
		{"PUT", "/v1/sets/cli", json, `If-Match: "other", "t"`, "v", 200, oneChange, "v"},
		{"GET", "/v1/sets/cli", "", "", "", 200, `"key":"hidden"`, "v"},
		{"GET", "/v1/sets/cli", "", `If-None-Match: "t"`, "", 304, "", "v"},
		{"GET", "/v1/sets/kube", "", "", "", 404, `owner \"kube\" has no set`, "v"},
		{"GET", "/v1/sets", "", "", "", 200, `[{"owner":"cli","services":0,"etag":"\"t\""}]`, "v"},
		{"GET", "/v1/sets/cli/documents", "", "", "", 200, `"affinities":["source-ip"]`, "v"},
		{"GET", "/v1/sets/cli/documents", "", "", "", 200, `"key":"hidden"`, "v"},
		{"GET", "/v1/sets/kube/documents", "", "", "", 404, `owner \"kube\" has no set`, "v"},
		{"PUT", "/v1/sets/cli/documents", json, "", "w", 200, `"added":[]`, "with logs w"},
		{"PUT", "/v1/sets/cli/documents", yaml, "", "n", 415, "application/json", "with logs w"},
		{"DELETE", "/v1/sets/cli", "", "", "", 405, "is only for GET, HEAD, PUT", "with logs w"},
	} {
		r := httptest.NewRequest(test.method, test.path, strings.NewReader(test.text))
		r.Header.Set("Content-Type", test.media)
		if name, value, given := strings.Cut(test.header, ": "); given {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if w.Code != test.code || !strings.Contains(w.Body.String(), test.body) || kept.text != test.kept {
			t.Errorf("%s %s %s %q: %d %s, and %q is kept; want %d %s, and %q",
				test.method, test.path, test.header, test.text, w.Code, w.Body, kept.text, test.code, test.body, test.kept)
		}
		want := map[string]string{"PUT": `"u"`, "GET": `"t"`}[test.method]
		if got := w.Header().Get("ETag"); test.code < 400 && strings.HasSuffix(test.path, "/cli") && want != "" && got != want {
			t.Errorf("%s %s: the ETag is %s, want %s", test.method, test.path, got, want)
		}
	}
}

func (o *oneOwner) Drain(_ context.Context, d Drain) ([]Drained, error) {
	return []Drained{{Owner: d.Owner, Backend: d.Backend, Before: model.Active, State: d.State}}, nil
}
