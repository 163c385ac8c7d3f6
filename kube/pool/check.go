package pool

import (
	"fmt"
	"slices"

	"weir.io/weir/internal/model"
)

// Check returns what is wrong with pools, by path in a file.
func Check(pools []Pool) (errs model.FieldErrors) {
	add := func(path, format string, args ...any) {
		errs = append(errs, model.FieldError{Path: path, Problem: fmt.Sprintf(format, args...)})
	}
	var all Used
	names := map[string]int{}
	for i, p := range pools {
		path := fmt.Sprintf("pools[%d]", i)
		if first, dup := names[p.Name]; p.Name == "" {
			add(path+".name", "is required")
		} else if dup {
			add(path+".name", "%q is already the name of pools[%d]", p.Name, first)
		}
		names[p.Name] = i
		if len(p.Addresses) == 0 {
			add(path+".addresses", "is required: a pool without addresses gives none")
		}
		for j, r := range p.Addresses {
			at := fmt.Sprintf("%s.addresses[%d]", path, j)
			if other := all.add(r, at); other != nil {
				errs = append(errs, model.FieldError{Path: at, Other: other.by, Problem: fmt.Sprintf("%s and %s have addresses in common", r, other.Range)})
			}
		}
	}
	return errs
}

// Used are the addresses of pools that are used together: no two pools have one in common.
type Used struct{ parts []used } // in the order of their addresses

type used struct {
	Range
	by string
}

// Add adds a pool, unless the pool has an address twice, or one that an earlier pool has: the error
// says which.
func (u *Used) Add(p *Pool) error {
	with := Used{slices.Clone(u.parts)}
	for i, r := range p.Addresses {
		if other := with.add(r, p.Name); other != nil {
			whose := "pool " + other.by
			if other.by == p.Name {
				whose = "the same pool"
			}
			return fmt.Errorf("addresses[%d]: %s has addresses in common with %s of %s", i, r, other.Range, whose)
		}
	}
	*u = with
	return nil
}

// add adds a range, unless it has an address that another one has: that one is returned.
func (u *Used) add(r Range, by string) *used {
	at, _ := slices.BinarySearchFunc(u.parts, r, func(a used, b Range) int { return a.First.Compare(b.First) })
	for _, near := range u.parts[max(at-1, 0):min(at+1, len(u.parts))] { // used ranges do not overlap, so no others can overlap the new one
		if near.Contains(r.First) || r.Contains(near.First) {
			return &near
		}
	}
	u.parts = slices.Insert(u.parts, at, used{r, by})
	return nil
}
