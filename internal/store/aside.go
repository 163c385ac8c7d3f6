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

// KeptAside is a state file that could not be used, under its second name.
type KeptAside struct {
	Path string
	Was  string // what was wrong with it: "was damaged"
	Fix  string // what to do with it
}

// Aside returns, in order, the files of a director's or an agent's state that could not be used:
// they are kept until an operator moves them.
func Aside(dir string) (kept []KeptAside) {
	for _, in := range []string{dir, filepath.Join(dir, "group"), filepath.Join(dir, "group", "segments")} {
		entries, _ := os.ReadDir(in) // a missing directory is reported elsewhere
		for _, entry := range entries {
			for _, of := range flaws {
				if strings.Contains(entry.Name(), of.mark) {
					kept = append(kept, KeptAside{filepath.Join(in, entry.Name()), of.was, of.fix})
				}
			}
		}
	}
	return kept
}

// keepAside gives a damaged file, whose first name stays, a second one.
func (e *CorruptError) keepAside() {
	if e.flaw() == damagedFlaw {
		e.Aside = keepAside(e.File)
	}
}

// moveAside leaves the file only its second name.
func (e *CorruptError) moveAside() bool {
	if e.keepAside(); e.Aside != "" {
		e.moved = os.Remove(e.File) == nil
		return e.moved
	}
	for _, aside := range secondNames(e.File, e.flaw().mark) {
		if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) { // this process alone makes such names
			if e.moved = os.Rename(e.File, aside) == nil; e.moved {
				e.Aside = aside
			}
			break
		}
	}
	return e.moved
}

// giveWay moves a file aside that could not be moved before, if it is still there.
func (e *CorruptError) giveWay() error {
	if _, err := os.Lstat(e.File); !errors.Is(err, fs.ErrNotExist) && !e.moveAside() {
		return fmt.Errorf("it is not overwritten, and cannot be moved aside: %w", e)
	}
	return nil
}

// wasMoved reports whether an error is about a file that was moved aside.
func wasMoved(err error) bool {
	bad := (*CorruptError)(nil)
	return errors.As(err, &bad) && bad.moved
}

// secondNames are those that a file may get.
func secondNames(path, mark string) (names []string) {
	for n := 1; n < 100; n++ {
		names = append(names, fmt.Sprintf("%s%s%d", path, mark, n))
	}
	return names
}

// keepAside gives a file a new second name and returns it; empty: that is not possible.
func keepAside(path string) string {
	file, err := os.Stat(path)
	if err != nil {
		return ""
	}
	for _, aside := range secondNames(path, damagedFlaw.mark) {
		err := os.Link(path, aside)
		if err == nil {
			return aside
		}
		if !errors.Is(err, fs.ErrExist) {
			return ""
		}
		if there, err := os.Stat(aside); err == nil && os.SameFile(file, there) {
			return aside
		}
	}
	return ""
}

// goWithout remembers a file that cannot be used and that a start can do without, and returns
// whether it could be moved aside. The lock is held, or there is no other goroutine yet.
func (f *File) goWithout(bad *CorruptError) (moved bool) {
	if moved = bad.moveAside(); moved {
		f.damaged = append(f.damaged, bad)
	} else {
		f.stay[filepath.Base(bad.File)] = bad
	}
	return moved
}

// clear moves a file aside that could not be moved before. So its content is not overwritten.
func (f *File) clear(name string) error {
	bad := f.stay[name]
	if bad == nil {
		return nil
	}
	if err := bad.giveWay(); err != nil {
		return err
	}
	if bad.moved {
		f.damaged = append(f.damaged, bad)
	}
	delete(f.stay, name)
	return nil
}

// InPlace returns what is wrong with files that a start has done without and that are still in their
// places, because they could not be moved aside.
func (f *File) InPlace() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(f.stay)) {
		if _, err := os.Lstat(f.stay[name].File); err == nil {
			errs = append(errs, f.stay[name])
		}
	}
	return errors.Join(errs...)
}
