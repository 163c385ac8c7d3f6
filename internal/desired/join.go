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
// if they go together.
func join(c model.Config, state store.State) (model.Config, error) {
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
	return c, &RefusedError{errors.New(strings.Join(lines, "\n"))}
}

// serviceIndex returns which service a field's path is of, if it is of one.
func serviceIndex(path string) (i int, is bool) {
	n, err := fmt.Sscanf(path, "services[%d]", &i)
	return i, n == 1 && err == nil
}
