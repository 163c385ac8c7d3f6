package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"weir.io/weir/internal/model"
)

// Documents is a set with its logs, as model.Document writes them.
type Documents struct {
	Documents []LoggedService `json:"documents"`
}

// LoggedService is a service with its log: the form that model.Document is written in.
type LoggedService struct {
	Service    model.Service    `json:"service"`
	Log        model.Log        `json:"log"`
	Affinities []model.Affinity `json:"affinities,omitempty" doc:"of the log's generations; none: all have the service's"`
}

type gotDocuments struct {
	Body json.RawMessage
}

type putDocuments struct {
	OwnerPath
	setBody
}

// handleDocuments lets clients that write the logs of several directors give them.
func (s *Server) handleDocuments() {
	path := "sets/{owner}/documents"
	handle(s, operation{method: http.MethodGet, path: path, id: "get-documents", summary: "A set with its logs", needs: model.RoleRead,
		text: "Each service with its log of generations. Keys are hidden.", answers: map[string]*huma.Response{"200": {Description: "OK",
			Content: map[string]*huma.MediaType{"application/json": {Schema: s.documentsSchema()}}}}}, func(ctx context.Context, in *OwnerPath) (*gotDocuments, error) { return s.getDocuments(ctx, in) })
	handle(s, operation{method: http.MethodPut, path: path, id: "put-documents", summary: "Replace a set as a whole, and its logs", needs: model.RoleAdmin, body: true,
		text: "For whoever writes the logs of several directors that have no store in common: the director uses these, and appends nothing to them and takes nothing out until the next are given. " +
			"The directors of a group that share an etcd write their own, and refuse it.",
		errors: []int{http.StatusRequestTimeout, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusServiceUnavailable}}, s.putDocuments)
	s.api.OpenAPI().Paths[base+path].Put.RequestBody = &huma.RequestBody{Required: true, Description: "what is wanted, in JSON",
		Content: map[string]*huma.MediaType{"application/json": {Schema: s.documentsSchema()}}}
}

func (s *Server) documentsSchema() *huma.Schema {
	return s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Documents](), true, "Documents")
}

func (s *Server) getDocuments(_ context.Context, in *OwnerPath) (*gotDocuments, error) {
	documents, found := s.sets.Documents(in.Owner)
	if !found {
		return nil, NewProblem(http.StatusNotFound, fmt.Sprintf("owner %q has no set", in.Owner))
	}
	text, err := DocumentsText(withoutKeys(documents))
	return &gotDocuments{Body: text}, err
}

// withoutKeys returns documents in which keys cannot be seen.
func withoutKeys(documents []model.Document) []model.Document {
	services := make([]model.Service, len(documents))
	for i := range documents {
		services[i] = documents[i].Service
	}
	hidden := make([]model.Document, len(documents))
	for i, s := range model.HideKeys(services) {
		hidden[i] = model.Document{Service: s, Log: documents[i].Log}
	}
	return hidden
}

func (s *Server) putDocuments(ctx context.Context, in *putDocuments) (*changedSet, error) {
	if !in.text.JSON {
		return nil, NewProblem(http.StatusUnsupportedMediaType, "a set with its logs is sent as application/json")
	}
	change, err := s.sets.Give(ctx, in.Owner, in.text.Text)
	return answerChange(change, err)
}

// DocumentsText is the JSON that a set with its logs is sent in.
func DocumentsText(documents []model.Document) ([]byte, error) {
	text, err := json.Marshal(struct {
		Documents []model.Document `json:"documents"`
	}{orEmpty(documents)})
	if err != nil {
		return nil, fmt.Errorf("write the set with its logs: %w", err)
	}
	return text, nil
}

// PutDocuments makes services with their logs an owner's set.
func (c *Client) PutDocuments(ctx context.Context, owner string, documents []model.Document) (change SetChange, err error) {
	text, err := DocumentsText(documents)
	if err != nil {
		return change, err
	}
	return c.change(ctx, http.MethodPut, "sets/"+url.PathEscape(owner)+"/documents", SetText{JSON: true}.header(), SetText{JSON: true, Text: text})
}

// Documents returns an owner's set with its logs.
func (c *Client) Documents(ctx context.Context, owner string) ([]model.Document, error) {
	var set struct {
		Documents []model.Document `json:"documents"`
	}
	_, err := c.ask(ctx, http.MethodGet, "sets/"+url.PathEscape(owner)+"/documents", nil, nil, &set)
	return set.Documents, err
}
