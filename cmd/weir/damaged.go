package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
	"weir.io/weir/internal/store"
)

// Parts of problems with the store that last until an operator acts.
const (
	partDamaged = "damaged"
	partStrays  = "strays"
	partInPlace = "in place"
)

// lostBy says what is lost with a file of the state that cannot be used, by the beginning of its name.
var lostBy = []struct{ file, lost string }{
	{"file.json", "the logs of the file's services begin again, and connections that an earlier change has left on other backends may break"},
	{string(store.RunningAgent), "the version of the file that ran last is not known"},
	{string(store.RunningDirector), "the version of the file that ran last is not known"},
	{"overrides", "backends that were drained beside the file get connections again"},
	{"root.json", "the group's last known state is read from etcd alone"},
}

// noteDamaged remembers the errors of files that were moved aside.
func (d *daemon) noteDamaged(list []*store.CorruptError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.damage = map[string]error{}
	for _, bad := range list {
		d.damage[bad.Aside] = bad
	}
}

// lookAtDamaged lists the files that could not be used and are kept aside in the directory of the
// state, until an operator has looked at them and removed them.
func (d *daemon) lookAtDamaged(dir string) {
	d.mu.Lock()
	known := d.damage
	d.mu.Unlock()
	var errs []error
	for _, kept := range store.Aside(dir) {
		err := known[kept.Path]
		if err == nil {
			err = fmt.Errorf("a state file %s, and is now %s", kept.Was, kept.Path)
		}
		name := filepath.Base(kept.Path)
		for _, row := range lostBy {
			if strings.HasPrefix(name, row.file) {
				err = fmt.Errorf("%w: %s", err, row.lost)
				break
			}
		}
		errs = append(errs, problems.Fixed(err, kept.Fix))
	}
	d.problems.Warn(model.ProblemStore, partDamaged, errors.Join(errs...))
}

// lookAtStrays lists files that look like sets of this director and that it has not written.
func (d *director) lookAtStrays() {
	var errs []error
	for _, path := range d.local.Strays() {
		err := fmt.Errorf("%s is none of the sets of this director: somebody else has put it there, and its services do not run", path)
		errs = append(errs, problems.Fixed(err, "move it out of the directory: a start may take it for a set"))
	}
	d.problems.Warn(model.ProblemStore, partStrays, errors.Join(errs...))
}
