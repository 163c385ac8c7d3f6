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

// beforeSuffix ends the names of files that have an owner's set that ran, as long as its
// replacement has not run. Such a file is a second name of the set's former file: it costs no room.
const beforeSuffix = ".before"

// Before returns, by owner, the sets that ran last and whose replacements have not run yet. A start
// goes on with them if the kernel refuses the newer ones.
func (f *File) Before() map[string]Set {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.before)
}

// Ran says that the state runs: earlier sets need no longer be kept.
func (f *File) Ran() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for owner := range f.before {
		if err := os.Remove(f.beforeFile(owner)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove what ran before: %w", err))
			continue
		}
		delete(f.before, owner)
	}
	return errors.Join(errs...)
}

func (f *File) beforeFile(owner string) string { return filepath.Join(f.dir, owner+beforeSuffix) }

// keepBefore keeps an owner's set, which is about to be replaced, until its successor runs. If one
// is kept already, that is the one that ran. Sets that are also written elsewhere are kept there.
// The lock is held.
func (f *File) keepBefore(owner string) error {
	if _, kept := f.before[owner]; kept || slices.Contains(f.written, owner) {
		return nil
	}
	path := f.beforeFile(owner)
	if err := f.clear(owner + beforeSuffix); err != nil {
		return err
	}
	err := os.Link(filepath.Join(f.dir, owner+suffix), path)
	if errors.Is(err, fs.ErrExist) { // an older process has left it
		if err = os.Remove(path); err == nil {
			err = os.Link(filepath.Join(f.dir, owner+suffix), path)
		}
	}
	if err != nil { // there was no set, its file was removed, or the file system has no links
		set := f.state.Sets[owner]
		text, wrong := written{format, owner, f.state.Revision, set.Given, set.Documents}.encode()
		if wrong != nil {
			return wrong
		}
		if err := writeFile(path, text); err != nil && !errors.As(err, new(*unsyncedError)) {
			return fmt.Errorf("keep what runs: %w", err)
		}
	}
	f.before[owner] = f.state.Sets[owner]
	return nil
}

// readBefore reads the sets that ran before. One that cannot be used is moved aside: the newer set is
// there.
func (f *File) readBefore() error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return fmt.Errorf("find what ran before: %w", err)
	}
	for _, entry := range entries {
		owner, is := strings.CutSuffix(entry.Name(), beforeSuffix)
		if !is {
			continue
		}
		path := filepath.Join(f.dir, entry.Name())
		w, err := readSet(path, owner)
		if bad := (*CorruptError)(nil); errors.As(err, &bad) {
			f.goWithout(bad)
			continue
		}
		if err != nil {
			return err
		}
		f.before[owner] = Set{Documents: w.Documents, Given: w.Given}
	}
	return nil
}
