package store

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// keptFile is a file of the directory, as this process last read or wrote it.
type keptFile struct {
	info    os.FileInfo // nil: the file does not exist yet
	problem error       // why it is not written
}

// note remembers a file's current state, or why it does not exist. The lock is held.
func (f *File) note(name string, problem error) {
	info, err := os.Lstat(filepath.Join(f.dir, name))
	if err != nil {
		info = nil
	}
	f.files[name] = keptFile{info, problem}
}

// Amiss says what in the directory is not as this process has it: files that were removed or
// changed, and those that could not be written. Empty: all is there.
func (f *File) Amiss() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var amiss []string
	if !f.locks() {
		amiss = append(amiss, "lock is gone")
	}
	for _, name := range f.amiss() {
		what := " was changed by somebody else"
		if f.files[name].problem != nil {
			what = " is not written"
		} else if _, err := os.Lstat(filepath.Join(f.dir, name)); errors.Is(err, fs.ErrNotExist) {
			what = " is gone"
		}
		amiss = append(amiss, name+what)
	}
	return strings.Join(amiss, ", ")
}

// locks reports whether this process's lock is still the directory's.
func (f *File) locks() bool {
	there, err := os.Lstat(filepath.Join(f.dir, lockFile))
	ours, other := f.lock.Stat()
	return err == nil && other == nil && os.SameFile(there, ours)
}

// amiss returns the names of files that are not as they should be, in order.
func (f *File) amiss() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		kept := f.files[name]
		now, err := os.Lstat(filepath.Join(f.dir, name))
		if kept.problem != nil || err != nil || kept.info == nil || !os.SameFile(now, kept.info) || now.Size() != kept.info.Size() || !now.ModTime().Equal(kept.info.ModTime()) {
			names = append(names, name)
		}
	}
	return names
}

// WriteAgain writes the files that are amiss. A directory that another process has taken meanwhile
// is left to that process: ErrInUse.
func (f *File) WriteAgain() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := makeDirectory(f.dir); err != nil {
		return err
	}
	if !f.locks() {
		lock, err := lockDirectory(f.dir)
		if err != nil {
			return err
		}
		_ = f.lock.Close() // no process can find it any more
		f.lock = lock
	}
	var errs []error
	for _, name := range f.amiss() {
		if err := f.writeAgain(name); err != nil && !errors.As(err, new(*unsyncedError)) {
			errs = append(errs, err) // the other files can still be written
		}
	}
	return errors.Join(errs...)
}

func (f *File) writeAgain(name string) error {
	owner, isSet := strings.CutSuffix(name, suffix)
	if !isSet {
		return f.writeOverrides()
	}
	set, has := f.state.Sets[owner]
	if !has {
		return fmt.Errorf("owner %q has no set to write", owner)
	}
	return f.write(owner, f.state.Revision, set)
}
