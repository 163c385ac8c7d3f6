package desired

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// joined is the last compatible configuration. There may be thousands of services, and a change
// concerns few of them: the others are still valid by themselves, and compatible with each other.
type joined struct {
	mu   sync.Mutex
	file model.Config
	sets map[string][]store.Document
	all  model.Config // of both; without services nothing is known
	work joinWork
}

// joinWork counts what was done.
type joinWork struct{ joins, validated int }

// with reports whether these services of a file were joined last, with the rest of the file
// unchanged.
func (j *joined) with(c model.Config) bool {
	if !model.SameMemory(c.Services, j.file.Services) {
		return false
	}
	was := j.file
	c.Services, was.Services = nil, nil
	c.FormerKeys, was.FormerKeys = nil, nil // only lines of the file
	return reflect.DeepEqual(c, was)
}

// join returns the file's configuration with the services of the sets of other owners, if they are
// compatible. Errors name the changing owner's own services by their index.
func (j *joined) join(c model.Config, state store.State, changes string) (model.Config, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	sets := maps.Clone(state.Sets)
	delete(sets, store.OwnerFile)
	same := j.with(c)
	if same && len(j.all.Services) > 0 && maps.EqualFunc(sets, j.sets, func(a store.Set, b []store.Document) bool { return model.SameMemory(a.Documents, b) }) {
		return j.all, nil
	}
	known := func(owner string) bool {
		was, is := j.sets[owner]
		if owner == store.OwnerFile {
			return same
		}
		return same && is && model.SameMemory(was, sets[owner].Documents)
	}
	all, err := j.anew(c, state, changes, known)
	if err == nil {
		j.file, j.all, j.sets = c, all, map[string][]store.Document{}
		for owner, set := range sets {
			j.sets[owner] = set.Documents
		}
	}
	return all, err
}

// anew joins them; the sets of some owners are known to be valid by themselves.
func (j *joined) anew(c model.Config, state store.State, changes string, valid func(owner string) bool) (model.Config, error) {
	j.work.joins++
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
	knows := map[string]bool{}
	for owner := range first {
		knows[owner] = valid(owner)
	}
	err := c.ValidateChanged(own, func(i int) bool {
		if knows[owners[i]] {
			return true
		}
		j.work.validated++
		return false
	})
	var fields model.FieldErrors
	if !errors.As(err, &fields) {
		return c, err
	}
	refused := &RefusedError{Refusals: make([]Refusal, len(fields))}
	for n, f := range fields {
		refused.Refusals[n] = Refusal{FieldError: model.FieldError{Path: f.Path, Problem: f.Problem}}
		r := &refused.Refusals[n]
		if limit, is := strings.CutPrefix(f.Other, "director.limits."); is && f.Path == "services" {
			r.Problem += receivers(services, owners, limit)
			r.Shared = true
		}
		i, of := serviceIndex(f.Path)
		j, with := serviceIndex(f.Other)
		of, with = of && i < len(owners), with && j < len(owners)
		path := func(i int, path string) string {
			_, field, _ := strings.Cut(path, "]")
			return fmt.Sprintf("services[%d]%s", i-first[owners[i]], field)
		}
		switch {
		case of && with && owners[i] != changes && owners[j] == changes:
			r.With = owners[i]
			r.Path, r.Problem = path(j, f.Other), fmt.Sprintf("service %q of owner %q: %s", services[i].Name, owners[i], f.Problem)
		case of:
			r.Path = path(i, f.Path)
			if owners[i] != changes || changes == store.OwnerFile {
				r.Owner = owners[i]
			}
			if with {
				r.With, r.Other = owners[j], path(j, f.Other)
				r.Problem += fmt.Sprintf(" (service %q of owner %q)", services[j].Name, owners[j])
			}
		}
		refused.Conflict = refused.Conflict || of && with && owners[i] != owners[j]
	}
	return c, refused
}

// serviceIndex returns the index of the service that a field's path is in, if it is in one.
func serviceIndex(path string) (i int, is bool) {
	n, err := fmt.Sscanf(path, "services[%d]", &i)
	return i, n == 1 && err == nil
}

// receivers says how much of a limit each owner takes, the most first.
func receivers(services []model.Service, owners []string, limit string) string {
	of := map[string]uint64{}
	for i, owner := range owners {
		of[owner] += model.UsageOf(services[i : i+1]).Of(limit)
	}
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b)) })
	var list []string
	for _, owner := range names[:min(len(names), mostReceivers)] {
		list = append(list, fmt.Sprintf("owner %q has %d", owner, of[owner]))
	}
	return ": " + strings.Join(list, ", ")
}

// mostReceivers is how many owners that take of a limit are named.
const mostReceivers = 5

// beyond says how an owner's services exceed what director.owners lets it have, and how segments exceed
// their limits by them. It is asked only when they are put: what runs goes on when the limit shrinks.
func beyond(file model.Config, owner string, services []model.Service, before, after store.State) error {
	for _, l := range file.Director.Owners {
		if l.Owner != owner {
			continue
		}
		if why := l.Refuse(services); why != "" {
			return &RefusedError{Refusals: []Refusal{{FieldError: model.FieldError{Path: "services", Problem: why}}}}
		}
	}
	if !file.LimitsSegments() {
		return nil
	}
	var refused RefusedError
	for _, e := range file.ExceededSegments(usageIn(file, after), usageIn(file, before)) {
		refused.Refusals = append(refused.Refusals, Refusal{FieldError: model.FieldError{Path: "services", Problem: e.String()}})
	}
	if refused.Refusals != nil {
		return &refused
	}
	return nil
}

// usageIn is what a file and sets use, by segment.
func usageIn(file model.Config, state store.State) map[model.Segment]model.Usage {
	lists := [][]model.Service{file.Services}
	for owner, set := range state.Sets {
		if owner != store.OwnerFile {
			lists = append(lists, set.Services())
		}
	}
	return model.UsageBySegment(lists...)
}
