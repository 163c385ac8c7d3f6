package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// sets is a director's desired state: its file, and the sets in its store.
type sets struct {
	log   *slog.Logger
	store *store.File // nil: only the file
	apply func(model.Config) error

	mu   sync.Mutex // one change at a time is checked against the others, and applied
	file model.Config
}

// openSets opens the store that a configuration names, if it names one.
func openSets(first model.Config, log *slog.Logger) (*sets, error) {
	s := &sets{log: log}
	dir := first.Director.Store.Directory
	if dir == "" {
		return s, nil
	}
	opened, err := store.OpenFile(dir)
	if err != nil {
		return nil, err
	}
	s.store = opened
	return s, nil
}

func (s *sets) close() {
	if s.store != nil {
		s.store.Close()
	}
}

// applyFile makes a new version of the file what runs, beside the sets.
func (s *sets) applyFile(c model.Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var state store.State
	if s.store != nil {
		var err error
		if state, err = s.store.Read(context.Background()); err != nil {
			return err
		}
	}
	joint, err := join(c, state)
	if err != nil {
		return err
	}
	s.file = c
	return s.apply(joint)
}

// Put makes a set what runs, beside the file and the other sets.
func (s *sets) Put(ctx context.Context, owner string, text []byte, dryRun bool) (api.SetChange, error) {
	services, err := config.ParseSet("set", text)
	if err == nil && owner == store.OwnerFile {
		err = fmt.Errorf("owner %q is the director's own file: change that", owner)
	}
	if err != nil {
		return api.SetChange{}, refused(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, err := s.store.Read(ctx)
	if err != nil {
		return api.SetChange{}, err
	}
	// Logs are the engine's as yet: they are not kept here.
	replace := store.Replace(owner, services, func(log model.Log, _ model.Service) model.Log { return log })
	var joint model.Config
	next, err := replace(before)
	if err == nil {
		joint, err = join(s.file, next)
	}
	if err != nil {
		return api.SetChange{}, refused(err)
	}
	if dryRun {
		return changeOf(before, next, owner), nil
	}
	after, err := s.store.Update(ctx, replace)
	if err != nil && after.Revision <= before.Revision {
		return api.SetChange{}, err
	}
	// An error with a new revision: the set is stored, but perhaps not for long.
	change := changeOf(before, after, owner)
	if notYet := s.apply(joint); notYet != nil {
		return change, errors.Join(err, fmt.Errorf("the set is stored, and not applied yet: %w", notYet))
	}
	s.log.Info("set applied", "owner", owner, "services", len(services), "revision", after.Revision)
	return change, err
}

func refused(err error) error {
	return api.Problem{Title: "Refused", Status: http.StatusUnprocessableEntity, Detail: err.Error()}
}

// join returns the file's configuration with the services of all sets, if they go
// together.
func join(c model.Config, state store.State) (model.Config, error) {
	owners := make([]string, len(c.Services))
	first := map[string]int{store.OwnerFile: 0}
	for i := range owners {
		owners[i] = store.OwnerFile
	}
	services := slices.Clone(c.Services)
	for _, owner := range state.Owners() {
		first[owner] = len(services)
		for _, d := range state.Sets[owner].Documents {
			services = append(services, d.Service)
			owners = append(owners, owner)
		}
	}
	if len(services) == len(c.Services) {
		return c, nil // the file is valid by itself
	}
	c.Services = services
	err := c.Validate()
	if err == nil {
		return c, nil
	}
	var fields model.FieldErrors
	if !errors.As(err, &fields) {
		return c, err
	}
	lines := make([]string, len(fields))
	for n, f := range fields {
		if i, of := serviceIndex(f.Path); of && i < len(owners) {
			_, field, _ := strings.Cut(f.Path, "]")
			f.Path = fmt.Sprintf("owner %q: services[%d]%s", owners[i], i-first[owners[i]], field)
		}
		if i, of := serviceIndex(f.Other); of && i < len(owners) {
			f.Problem += fmt.Sprintf(" (service %q of owner %q)", services[i].Name, owners[i])
		}
		lines[n] = f.Error()
	}
	return c, errors.New(strings.Join(lines, "\n"))
}

// serviceIndex returns which service a field's path is of, if it is of one.
func serviceIndex(path string) (i int, is bool) {
	n, err := fmt.Sscanf(path, "services[%d]", &i)
	return i, n == 1 && err == nil
}

// changeOf lists what differs between two states of an owner's set.
func changeOf(before, after store.State, owner string) api.SetChange {
	change := api.SetChange{Revision: after.Revision}
	was := map[model.ServiceID]model.Service{}
	for _, d := range before.Sets[owner].Documents {
		was[d.Service.ID()] = d.Service
	}
	for _, d := range after.Sets[owner].Documents {
		old, had := was[d.Service.ID()]
		switch {
		case !had:
			change.Added = append(change.Added, d.Service.Name)
		case !reflect.DeepEqual(old, d.Service):
			change.Changed = append(change.Changed, d.Service.Name)
		}
		delete(was, d.Service.ID())
	}
	for _, old := range was {
		change.Removed = append(change.Removed, old.Name)
	}
	slices.Sort(change.Removed)
	return change
}
