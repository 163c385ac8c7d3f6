package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// parameter is a part of a request in the API's document.
type parameter struct {
	Name, In string
	Schema   parameterSchema
}

type parameterSchema struct {
	Type      any
	Enum      []string
	Pattern   string
	MaxLength int
}

// read are texts of which something else is made as they are read.
var read = []string{"/v1/flows client", "/v1/flows backend", "/v1/explain frame", "/v1/explain payload",
	"/v1/explain segment", "/v1/explain source", "/v1/explain destination",
	"/v1/report backend", "/v1/report segment", "/v1/report taken"}

// isBounded says whether what is sent has a bound, if it is text and stays text.
func (s parameterSchema) isBounded(path, name string) bool {
	return s.Type != "string" || len(s.Enum) > 0 || s.Pattern != "" || s.MaxLength > 0 || slices.Contains(read, path+" "+name)
}

// Texts of requests have bounds, and a refusal repeats no long one, whatever part of the request that is in.
func TestRefusalsRepeatNoLongText(t *testing.T) {
	server := everything()
	text, err := server.Document()
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]struct {
			Parameters []parameter
			Body       struct {
				Content map[string]struct {
					Schema struct {
						Ref string `json:"$ref"`
					}
				}
			} `json:"requestBody"`
		}
		Components struct {
			Schemas map[string]struct {
				Properties map[string]parameterSchema
			}
		}
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("a", 100_000)
	handler, asked := server.Handler(), 0
	ask := func(what, method, path, body string, header http.Header) {
		asked++
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // what is taken in spite of its length may be an answer that does not end
		r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
		r.Header = header
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if answer := w.Body.String(); w.Code >= 500 || len(answer) > 2000 {
			t.Errorf("%s: the answer to a long text is %d, with %d bytes: %.200s", what, w.Code, len(answer), answer)
		}
	}
	for path, operations := range document.Paths {
		for method, operation := range operations {
			method = strings.ToUpper(method)
			at := func(owner string) string { return strings.ReplaceAll(path, "{owner}", owner) }
			for _, p := range append(operation.Parameters, parameter{Name: long, In: "query"}) {
				if !p.Schema.isBounded(path, p.Name) && p.In != "header" {
					t.Errorf("%s %s: %s has no bound", method, path, p.Name)
				}
				what := fmt.Sprintf("%s %s, %.20s %s", method, path, p.Name, p.In)
				switch p.In {
				case "path":
					ask(what, method, at(long), "", http.Header{})
				case "query":
					ask(what, method, at("a")+"?"+url.Values{p.Name: {long}}.Encode(), "", http.Header{})
				case "header":
					ask(what, method, at("a"), "", http.Header{p.Name: {long}})
				}
			}
			for _, content := range operation.Body.Content {
				name := content.Schema.Ref[strings.LastIndex(content.Schema.Ref, "/")+1:]
				properties := document.Components.Schemas[name].Properties
				keys := []string{long}
				for key, schema := range properties {
					if !schema.isBounded(path, key) {
						t.Errorf("%s %s: %s has no bound", method, path, key)
					}
					keys = append(keys, key)
				}
				for _, key := range keys {
					for form, value := range map[string]any{"text": long, "list": []string{long}, "mapping": map[string]any{long: long}} {
						body, err := json.Marshal(map[string]any{key: value})
						if err != nil {
							t.Fatal(err)
						}
						ask(fmt.Sprintf("%s %s, %.20s %s", method, path, key, form), method, at("a"), string(body), http.Header{})
					}
				}
			}
		}
	}
	ask("a path", http.MethodGet, "/v1/"+long, "", http.Header{})
	if asked < 100 {
		t.Errorf("only %d requests were made", asked)
	}
}
