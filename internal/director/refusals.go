package director

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/desired"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// keeperList is the list of problems for the keeper, which does not know the file's name or
// where sets are stored.
type keeperList struct{ d *Director }

// Report lists what does not run.
func (l keeperList) Report(kind model.ProblemKind, part string, err error) {
	l.d.Problems.Report(kind, l.part(kind, part), l.d.located(err))
}

// Warn lists what runs, but not in all of its parts.
func (l keeperList) Warn(kind model.ProblemKind, part string, err error) {
	l.d.Problems.Warn(kind, l.part(kind, part), l.d.located(err))
}

func (l keeperList) part(kind model.ProblemKind, part string) string {
	if kind == model.ProblemFile {
		return l.d.File()
	}
	return part
}

// locatedError is a refusal that knows the places of both sides.
type locatedError struct {
	desired.Refusal
	place model.Place
}

// Error begins with the file and the line, where the file is one side.
func (e *locatedError) Error() string {
	switch {
	case e.place.Line > 0:
		return fmt.Sprintf("%s:%d: %s", e.place.File, e.place.Line, e.Refusal.Error())
	case e.place.File != "":
		return fmt.Sprintf("%s: %s", e.place.File, e.Refusal.Error())
	}
	return e.Refusal.Error()
}

// Unwrap returns the refusal.
func (e *locatedError) Unwrap() error { return e.Refusal }

// Place returns the places of both sides.
func (e *locatedError) Place() model.Place { return e.place }

// located adds the places of a refusal's fields, and where the sets that they contradict are
// stored.
func (d *Director) located(err error) error {
	var refused *desired.RefusedError
	if !errors.As(err, &refused) {
		return err
	}
	text, _ := os.ReadFile(d.File())
	var all []error
	for _, r := range refused.Refusals {
		all = append(all, &locatedError{r, d.placeOf(r, text)})
	}
	return errors.Join(all...)
}

// placeOf returns where the two sides of a refusal are: one in the file, whose text is given, the
// other in an owner's set; or both in sets.
func (d *Director) placeOf(r desired.Refusal, text []byte) model.Place {
	at, inFile := model.Place{Field: r.Path, Owner: r.Owner}, r.Path
	switch {
	case r.Owner == "" || r.Owner == store.OwnerFile:
		at.Owner = r.With
	case r.With == store.OwnerFile:
		inFile = r.Other
	default:
		at.Stored = d.storedIn(r.Owner)
		return at
	}
	at.File, at.Line = d.File(), config.Line(text, inFile)
	if at.Owner != "" && at.Owner != store.OwnerFile {
		at.Stored = d.storedIn(at.Owner)
	}
	return at
}

// storedIn says where an owner's set is.
func (d *Director) storedIn(owner string) string {
	if e := d.first.Store.Etcd; d.group != nil {
		return fmt.Sprintf("the etcd of %v, %s, owner %q", e.Endpoints, e.Prefix, owner)
	}
	return filepath.Join(daemon.StateDirectory(d.first.Store), owner+".json")
}
