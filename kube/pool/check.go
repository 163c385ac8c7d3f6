package pool

import (
	"cmp"
	"fmt"
	"slices"

	"weir.io/weir/internal/model"
)

// Check returns what is wrong with pools, by path in a file.
func Check(pools []Pool) (errs model.FieldErrors) {
	add := func(path, format string, args ...any) {
		errs = append(errs, model.FieldError{Path: path, Problem: fmt.Sprintf(format, args...)})
	}
	type part struct {
		Range
		path string
	}
	var parts []part
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
			parts = append(parts, part{r, fmt.Sprintf("%s.addresses[%d]", path, j)})
		}
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last)) })
	for i := 1; i < len(parts); i++ {
		before, at := parts[i-1], parts[i]
		if before.Contains(at.First) {
			errs = append(errs, model.FieldError{Path: at.path, Other: before.path, Problem: fmt.Sprintf("%s and %s have addresses in common", at.Range, before.Range)})
		}
		if before.Last.Compare(at.Last) > 0 {
			parts[i] = before // the earlier range may reach further
		}
	}
	return errs
}

// Used are the addresses of pools that are used together: no two pools have one in common.
type Used struct{ parts []used } // in the order of their addresses

type used struct {
	Range
	pool string
}

// Add adds a pool, unless the pool has an address twice, or one that an earlier pool has: the error
// says which.
func (u *Used) Add(p *Pool) error {
	parts := slices.Clone(u.parts)
	for i, r := range p.Addresses {
		at, _ := slices.BinarySearchFunc(parts, r, func(a used, b Range) int { return a.First.Compare(b.First) })
		// Used ranges do not overlap, so only these two can overlap the new one.
		for _, near := range []int{at - 1, at} {
			if near < 0 || near >= len(parts) {
				continue
			}
			if other := parts[near]; other.Contains(r.First) || r.Contains(other.First) {
				whose := "pool " + other.pool
				if other.pool == p.Name {
					whose = "the same pool"
				}
				return fmt.Errorf("addresses[%d]: %s has addresses in common with %s of %s", i, r, other.Range, whose)
			}
		}
		parts = slices.Insert(parts, at, used{r, p.Name})
	}
	u.parts = parts
	return nil
}
