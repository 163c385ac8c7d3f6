package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

var update = flag.Bool("update", false, "write docs/reference/openapi.json as it is now")

// everything is a server with all operations, without sources.
func everything() *api.Server { return everythingWith(anyReports{}) }

func everythingWith(reports api.Reports) *api.Server {
	d := newDirector()
	server := api.NewServer(d, d, quiet())
	server.HandleBGP(func() model.BGPStatus { return model.BGPStatus{} })
	server.HandleSets(anySets{})
	server.HandleExplain(func(context.Context, model.Question) (model.Explanation, error) { return model.Explanation{}, nil })
	server.HandleCapture(func(context.Context, model.Capture) (api.CaptureRun, error) {
		return nil, api.NewProblem(http.StatusConflict, "a capture runs already")
	})
	server.HandleFlows(func(context.Context, api.FlowQuery) (api.Flows, error) { return api.Flows{}, nil })
	server.HandleDirectors(nil)
	server.HandleEvents(api.NewEvents())
	server.HandleLive(api.LiveSources{})
	server.HandleRing(func(string) (api.Ring, bool) { return api.Ring{}, false })
	server.HandleSegments(noSegments{})
	server.HandleReports(reports)
	return server
}

// The document in docs is the one that a director serves: clients are made from it.
func TestDocument(t *testing.T) {
	got, err := everything().Document()
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		OpenAPI string                               `json:"openapi"`
		Paths   map[string]map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(got, &document); err != nil || document.OpenAPI[:4] != "3.1." {
		t.Fatalf("the document is of OpenAPI %q: %v", document.OpenAPI, err)
	}
	for path, methods := range document.Paths {
		for method, operation := range methods {
			if operation["summary"] == nil || operation["operationId"] == nil {
				t.Errorf("%s %s has no name or nothing is said of it", method, path)
			}
		}
	}
	file := filepath.Join("..", "..", "docs", "reference", "openapi.json")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what a director serves: go test ./internal/api -run TestDocument -update", file)
	}
}

// noSegments knows of none.
type noSegments struct{}

func (noSegments) Segments([]model.Segment) (model.SegmentsStatus, error) {
	return model.SegmentsStatus{}, nil
}
func (noSegments) PutSegments(api.SetText) (api.PutHosts, error) {
	return api.PutHosts{}, nil
}
