package desired

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// join returns the file's configuration with the services of the sets of other owners,
// if they go together. The one who changes something knows their own services by place.
func join(c model.Config, state store.State, changes string) (model.Config, error) {
	owners := make([]string, len(c.Services))
	first := map[string]int{store.OwnerFile: 0}
	for i := range owners {
		owners[i] = store.OwnerFile
	}
	services := slices.Clone(c.Services)
	for _, owner := range state.Owners() {
		if owner == store.OwnerFile {
			continue
		}
		first[owner] = len(services)
		for _, d := range state.Sets[owner].Documents {
			services = append(services, d.Service)
			owners = append(owners, owner)
		}
	}
	own := len(c.Services)
	if len(services) == own {
		return c, nil // the file is valid by itself
	}
	c.Services = services
	err := c.ValidateShared(own)
	var fields model.FieldErrors
	if !errors.As(err, &fields) {
		return c, err
	}
	refused := &RefusedError{Refusals: make([]Refusal, len(fields))}
	for n, f := range fields {
		refused.Refusals[n] = Refusal{FieldError: model.FieldError{Path: f.Path, Problem: f.Problem}}
		r := &refused.Refusals[n]
		i, of := serviceIndex(f.Path)
		j, with := serviceIndex(f.Other)
		of, with = of && i < len(owners), with && j < len(owners)
		path := func(i int, path string) string {
			_, field, _ := strings.Cut(path, "]")
			return fmt.Sprintf("services[%d]%s", i-first[owners[i]], field)
		}
		switch {
		case of && with && owners[i] != changes && owners[j] == changes:
			r.Path, r.Problem = path(j, f.Other), fmt.Sprintf("service %q of owner %q: %s", services[i].Name, owners[i], f.Problem)
		case of:
			r.Path = path(i, f.Path)
			if owners[i] != changes || changes == store.OwnerFile {
				r.Owner = owners[i]
			}
			if with {
				r.Problem += fmt.Sprintf(" (service %q of owner %q)", services[j].Name, owners[j])
			}
		}
		refused.Conflict = refused.Conflict || of && with && owners[i] != owners[j]
	}
	return c, refused
}

// serviceIndex returns which service a field's path is of, if it is of one.
func serviceIndex(path string) (i int, is bool) {
	n, err := fmt.Sscanf(path, "services[%d]", &i)
	return i, n == 1 && err == nil
}
