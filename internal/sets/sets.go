// Package sets is the API's way to the sets of a director's store: it reads them, says what they would
// change, makes them run, and drains their backends.
package sets

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/desired"
	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Deps are what Sets works with.
type Deps struct {
	Controller *desired.Controller
	Kernel     *datapath.Datapath
	Found      func() map[model.Target]model.BackendHealth // what probes find
	Limits     model.Limits                                // of the maps, which were made when the director started
}

// Sets are the sets of a director's store.
type Sets struct {
	controller *desired.Controller
	kernel     *datapath.Datapath
	found      func() map[model.Target]model.BackendHealth
	limits     model.Limits
	given      given
	reading    *api.Reading
}

// New returns the sets of a controller.
func New(deps Deps) *Sets {
	return &Sets{controller: deps.Controller, kernel: deps.Kernel, found: deps.Found, limits: deps.Limits, reading: api.NewReading()}
}

// List returns all sets, including the file's.
func (s *Sets) List() []api.SetInfo {
	state := s.controller.Sets()
	var list []api.SetInfo
	for _, owner := range state.Owners() {
		set := state.Sets[owner]
		list = append(list, api.SetInfo{Owner: owner, Services: len(set.Documents), ETag: `"` + set.Tag() + `"`, Fixed: owner == store.OwnerFile})
	}
	return list
}

// Get returns an owner's set.
func (s *Sets) Get(owner string) (api.Set, bool) {
	state := s.controller.Sets()
	set, found := state.Sets[owner]
	return api.Set{Services: set.Services(), Tag: set.Tag(), Revision: state.Revision}, found
}

// Put makes a set run, beside the file and the other sets.
func (s *Sets) Put(ctx context.Context, owner string, text api.SetText, when api.Condition) (api.SetChange, error) {
	return s.change(ctx, owner, text, func(services []model.Service) (api.SetChange, error) {
		return s.controller.PutPart(ctx, owner, services, text.Part, when)
	})
}

func (s *Sets) change(ctx context.Context, owner string, text api.SetText, do func([]model.Service) (api.SetChange, error)) (none api.SetChange, err error) {
	if err := model.CheckOwner(owner); err != nil {
		return none, api.NewProblem(http.StatusUnprocessableEntity, err.Error(), api.FieldProblem{Field: "owner", Detail: err.Error()})
	}
	var services []model.Service
	release, err := s.reading.Do(ctx, func() (size int, err error) {
		services, err = parseSet(text)
		return model.SizeOf(services), err
	})
	if err != nil {
		return none, err
	}
	defer release()
	if err := outside(ctx, services); err != nil {
		return none, err
	}
	change, err := do(services)
	return change, wordedFor(ctx, err)
}

// outside refuses services that are not in the segments for which a client is.
func outside(ctx context.Context, services []model.Service) error {
	only := api.CallerSegments(ctx)
	if only == nil {
		return nil
	}
	errs := model.OutsideSegments(services, only)
	if errs == nil {
		return nil
	}
	p := api.NewProblem(http.StatusForbidden, fmt.Sprintf("%s may have services in the segments %s alone: %v", api.CallerName(ctx), model.SegmentList(only), errs[0]))
	for _, e := range errs {
		p.Errors = append(p.Errors, api.FieldProblem{Field: e.Path, Detail: e.Problem})
	}
	return p
}

// wordedFor is worded for a client that may be for some segments alone: what it is told names no other owner, no
// service of others, and nothing that all owners have together.
func wordedFor(ctx context.Context, err error) error {
	var refused *desired.RefusedError
	if api.CallerSegments(ctx) == nil || !errors.As(err, &refused) {
		return worded(err)
	}
	own := &desired.RefusedError{Conflict: refused.Conflict}
	for _, r := range refused.Refusals {
		if r.Owner != "" {
			r.Path = "" // of a set of others
		}
		if r.Owner != "" || r.With != "" || r.Shared {
			r = desired.Refusal{FieldError: model.FieldError{Path: cmp.Or(r.Path, "services"), Problem: "is not available on this director"}}
		}
		if !slices.Contains(own.Refusals, r) {
			own.Refusals = append(own.Refusals, r)
		}
	}
	return worded(own)
}

// Preview returns the configuration, with its logs, that would run if an owner put these services.
func (s *Sets) Preview(ctx context.Context, owner string, services []model.Service) (none model.Config, _ engine.Logs, err error) {
	if err := model.CheckOwner(owner); err != nil {
		return none, nil, api.NewProblem(http.StatusUnprocessableEntity, err.Error(), api.FieldProblem{Field: "with.owner", Detail: err.Error()})
	}
	text, err := json.Marshal(api.Set{Services: services})
	if err != nil {
		return none, nil, fmt.Errorf("read the set: %w", err)
	}
	if services, err = parseSet(api.SetText{JSON: true, Text: text}); err != nil {
		return none, nil, err
	}
	if err := outside(ctx, services); err != nil {
		return none, nil, err
	}
	joint, logs, err := s.controller.Preview(ctx, owner, services)
	return joint, logs, wordedFor(ctx, err)
}

// worded returns an error of a change as a problem, if the error is the client's, or if nothing is
// wrong with the change: then the client may ask again when the store answers.
func worded(err error) error {
	var refused *desired.RefusedError
	switch {
	case errors.As(err, &refused):
		return problemOf(refused)
	case errors.Is(err, desired.ErrOtherSet):
		return api.NewProblem(http.StatusPreconditionFailed, err.Error())
	case errors.Is(err, etcdclient.ErrUnreachable):
		return api.NewProblem(http.StatusServiceUnavailable, "the group's sets can be neither read nor changed; what runs goes on: "+err.Error())
	}
	return err
}

// parseSet reads a set. JSON is also YAML, but not the other way round.
func parseSet(text api.SetText) ([]model.Service, error) {
	return Read(text, func(text []byte) ([]model.Service, error) { return config.ParseSet("set", text) })
}

// Read reads what a client has sent by a function of internal/config. Its errors are problems that name the fields.
func Read[T any](text api.SetText, parse func([]byte) (T, error)) (none T, _ error) {
	if text.JSON && !json.Valid(text.Text) {
		if err := json.Unmarshal(text.Text, new(json.RawMessage)); err != nil { // says where
			return none, api.NewProblem(http.StatusBadRequest, "the body is not JSON: "+err.Error())
		}
	}
	value, err := parse(text.Text)
	var errs config.Errors
	if !errors.As(err, &errs) {
		return value, err
	}
	p := api.NewProblem(http.StatusUnprocessableEntity, err.Error())
	for _, e := range errs {
		if e.Path == "" && !text.JSON {
			p = api.NewProblem(http.StatusBadRequest, err.Error()) // it is not even YAML
		}
		field := api.FieldProblem{Field: e.Path, Line: e.Line, Detail: e.Problem}
		if text.JSON {
			field.Line = 0 // all of it may be on one line
		}
		p.Errors = append(p.Errors, field)
	}
	return none, p
}

// problemOf words why a set contradicts the rest.
func problemOf(refused *desired.RefusedError) *api.Problem {
	status := http.StatusUnprocessableEntity
	if refused.Conflict {
		status = http.StatusConflict
	}
	p := api.NewProblem(status, refused.Error())
	for _, r := range refused.Refusals {
		field := api.FieldProblem{Field: r.Path, Detail: r.Problem}
		if r.Owner != "" {
			field = api.FieldProblem{Detail: fmt.Sprintf("owner %q: %s: %s", r.Owner, r.Path, r.Problem)}
			if r.Path == "" {
				field.Detail = r.Error()
			}
		}
		p.Errors = append(p.Errors, field)
	}
	return p
}

// Documents returns an owner's set with its logs.
func (s *Sets) Documents(owner string) ([]model.Document, bool) {
	set, found := s.controller.Sets().Sets[owner]
	return set.Documents, found
}

// Give makes a set with its logs run, beside the file and the other sets.
func (s *Sets) Give(ctx context.Context, owner string, text []byte) (none api.SetChange, err error) {
	var set givenSet
	release, err := s.reading.Do(ctx, func() (int, error) {
		if set, err = s.given.parse(owner, text); err != nil {
			return 0, api.NewProblem(http.StatusBadRequest, "the body is not a set with its logs: "+err.Error())
		}
		return set.size, nil
	})
	if err != nil {
		return none, err
	}
	defer release()
	if set.documents == nil {
		return none, api.NewProblem(http.StatusUnprocessableEntity, "documents: is required (an empty list is [])", api.FieldProblem{Field: "documents", Detail: "is required (an empty list is [])"})
	}
	err = model.ValidateChangedDocuments(set.documents, func(i int) bool { return set.known[i] })
	if errs := (model.FieldErrors)(nil); errors.As(err, &errs) {
		p := api.NewProblem(http.StatusUnprocessableEntity, err.Error())
		for _, e := range errs {
			p.Errors = append(p.Errors, api.FieldProblem{Field: e.Path, Detail: e.Problem})
		}
		return none, p
	}
	if err != nil {
		return none, err
	}
	change, err := s.controller.Give(ctx, owner, set.documents)
	if err == nil {
		s.given.keep(owner, set)
	}
	return change, worded(err)
}
