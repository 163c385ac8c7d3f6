package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
	"weir.io/weir/internal/upkeep"
)

// partState is the directory of a process's state.
const partState = "state"

// ranFile is the version of the file that runs, as it is kept.
type ranFile struct {
	dir     string
	name    store.RunningName
	text    []byte // nil: none is kept
	written bool
}

// saveRunning keeps a version of the file in a directory. A failure is listed.
func (d *daemon) saveRunning(dir string, name store.RunningName, text []byte) {
	err := store.SaveRunning(dir, name, store.Running{File: absolute(d.info.File), Text: string(text)})
	d.problems.Warn(model.ProblemStore, "running", err)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ran = ranFile{dir, name, text, err == nil}
}

// lookAtRan says whether the version of the file that runs is gone from where it is kept. Failed
// writes are tried again.
func (d *daemon) lookAtRan() (gone string) {
	d.mu.Lock()
	ran := d.ran
	d.mu.Unlock()
	switch _, err := os.Lstat(filepath.Join(ran.dir, string(ran.name))); {
	case ran.text == nil:
	case !ran.written:
		d.saveRunning(ran.dir, ran.name, ran.text)
	case os.IsNotExist(err):
		return string(ran.name) + " is gone"
	}
	return ""
}

// saveRanAgain puts it back.
func (d *daemon) saveRanAgain() error {
	d.mu.Lock()
	ran := d.ran
	d.mu.Unlock()
	if ran.text != nil {
		d.saveRunning(ran.dir, ran.name, ran.text)
	}
	return nil // a failure is listed
}

// statePart is the part of the host that keeps a director's state directory as the director has it.
func (d *director) statePart() upkeep.Part {
	dir := stateDirectory(d.first.Store)
	return upkeep.Part{Name: partState, Look: func() ([]upkeep.Difference, error) {
		d.lookAtDamaged(dir)
		d.problems.Warn(model.ProblemStore, partInPlace, d.local.InPlace())
		d.lookAtStrays()
		amiss, gone := d.local.Amiss(), d.lookAtRan()
		if amiss == "" && gone == "" {
			return d.unwritable(dir), nil
		}
		found := strings.Trim(amiss+", "+gone, ", ")
		return []upkeep.Difference{{What: dir, Found: "is not as it was written: " + found, Repair: func() error {
			err := d.local.WriteAgain()
			if errors.Is(err, store.ErrInUse) {
				return err // the directory is another process's: nothing is written there
			}
			return errors.Join(err, d.saveRanAgain())
		}}}, nil
	}}
}

// unwritable says whether the next change could not be written, while nothing is to be written now.
// A write that has failed is listed as such. Problems that only an operator can end are about no
// write, and do not count.
func (d *daemon) unwritable(dir string) []upkeep.Difference {
	at := existing(dir)
	err := writable(at)
	if err == nil || slices.ContainsFunc(d.problems.Of(model.ProblemStore), func(p model.Problem) bool {
		return !slices.Contains([]string{partDamaged, partStrays, partInPlace}, p.Part)
	}) {
		return nil
	}
	return []upkeep.Difference{{What: at, Found: fmt.Sprintf("cannot be written: %v", err)}}
}

// existing returns the directory, or the one in which it would be made: a process makes missing ones.
func existing(dir string) string {
	for unix.Access(dir, unix.F_OK) == unix.ENOENT && dir != "/" {
		dir = filepath.Dir(dir)
	}
	return dir
}

// writable returns why no file can be written in a directory: its rights, or a file system that is
// full. One without inodes says that there is no space, though df shows some. A file system that
// makes inodes as needed counts none.
func writable(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return err
	}
	var on unix.Statfs_t
	if err := unix.Statfs(dir, &on); err != nil {
		return err
	}
	free := on.Bavail
	if os.Geteuid() == 0 {
		free = on.Bfree
	}
	switch {
	case on.Files > 0 && on.Ffree == 0:
		return errors.New("its file system has no inode left (df -i)")
	case on.Blocks > 0 && free == 0:
		return errors.New("its file system is full")
	}
	return nil
}

// ranPart is the same for an agent, which has no other state.
func (d *daemon) ranPart() upkeep.Part {
	dir := stateDirectory(model.Store{})
	return upkeep.Part{Name: partState, Look: func() ([]upkeep.Difference, error) {
		d.lookAtDamaged(dir)
		gone := d.lookAtRan()
		if gone == "" {
			return d.unwritable(dir), nil
		}
		return []upkeep.Difference{{What: dir, Found: "is not as it was written: " + gone, Repair: d.saveRanAgain}}, nil
	}}
}
