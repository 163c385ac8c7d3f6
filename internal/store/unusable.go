package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// CorruptError is a state file that cannot be used: it is damaged, another version of weir has
// written it, or it cannot be read. Its content is kept. Where a start needs the file it stays in
// place, so that every start refuses it; a damaged one also has a second name, so that it is not
// lost with the first. Where a start can do without the file, it is moved aside.
type CorruptError struct {
	File         string
	Line, Column int // from 1, of a damaged file
	Problem      error
	Aside        string // its second name; empty if it could not have one, or needs none
	copied       string // the owner whose set the file has, if that is another's
	moved        bool   // the second name is the only one now
}

// readState reads a state file. One that is there and cannot be read gives a *CorruptError, unless
// it is the process that lacks something.
func readState(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err == nil {
		return text, nil
	}
	for _, other := range []error{fs.ErrNotExist, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if errors.Is(err, other) {
			return nil, fmt.Errorf("read the state: %w", err)
		}
	}
	return nil, &CorruptError{File: path, Line: 1, Column: 1, Problem: &unreadError{err}}
}

// readValue reads a state file that has one JSON value.
func readValue(path string, value any) (text []byte, err error) {
	if text, err = readState(path); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, value); err != nil {
		return nil, &CorruptError{File: path, Line: 1, Column: 1, Problem: err}
	}
	return text, nil
}

// Error names the file, the place, and what to do.
func (e *CorruptError) Error() string {
	of := e.flaw()
	text, remedy := of.text(e), of.remedy(e)
	if e.moved {
		remedy = "it is now " + e.Aside
	}
	if remedy == "" {
		return text
	}
	return text + "; " + remedy
}

// Unwrap returns the problem.
func (e *CorruptError) Unwrap() error { return e.Problem }

// readSet reads an owner's file. One that cannot be used gives a *CorruptError without a second
// name.
func readSet(path, owner string) (written, error) {
	text, err := readState(path)
	if err != nil {
		return written{}, err
	}
	w, err := decode(text)
	corrupt := &CorruptError{File: path, Line: 1, Column: 1}
	if err == nil && w.Owner != owner {
		err = &badText{0, fmt.Errorf("it is the set of owner %q", w.Owner)}
		corrupt.copied = w.Owner
	}
	if err == nil {
		return w, nil
	}
	corrupt.Problem = err
	if bad := (*badText)(nil); errors.As(err, &bad) {
		corrupt.Line, corrupt.Column = bad.position(text)
	}
	return written{}, corrupt
}

// flaw is a way in which a state file cannot be used.
type flaw struct {
	mark     string                       // between the file's name and a number, in its second name
	text     func(e *CorruptError) string // what is wrong
	remedy   func(e *CorruptError) string // where a start needs the file; empty: it is not known
	was, fix string                       // of a file that is kept aside: what was wrong, and what to do with it
}

var (
	damagedFlaw = &flaw{
		mark: ".corrupt-",
		text: func(e *CorruptError) string {
			return fmt.Sprintf("%s:%d:%d: the state file is damaged: %v", e.File, e.Line, e.Column, e.Problem)
		},
		remedy: func(e *CorruptError) string {
			if e.Aside == "" {
				return ""
			}
			return fmt.Sprintf("put a good copy in its place, or remove it to begin without its services (it stays as %s)", e.Aside)
		},
		was: "was damaged", fix: "look at the file, and remove it: then this is over",
	}
	formatFlaw = &flaw{
		mark: ".format-",
		text: func(e *CorruptError) string {
			return fmt.Sprintf("%s: the state file cannot be used: %v", e.File, e.Problem)
		},
		remedy: func(*CorruptError) string {
			return "start the version that has written it, or move the file away to begin without its services"
		},
		was: "was of another version of weir",
		fix: "stop this version, give the file its name back and start the version that has written it; or remove the file: then this is over",
	}
	unreadFlaw = &flaw{
		mark: ".unread-",
		text: func(e *CorruptError) string { return fmt.Sprintf("the state file cannot be read: %v", e.Problem) },
		remedy: func(*CorruptError) string {
			return "make it readable for weir, or remove it to begin without its services"
		},
		was: "could not be read", fix: "make the file readable, stop weir, and give the file its name back; or remove the file: then this is over",
	}
)

// flaws are all of them.
var flaws = []*flaw{damagedFlaw, formatFlaw, unreadFlaw}

// flaw says what is wrong with the file.
func (e *CorruptError) flaw() *flaw {
	switch {
	case errors.As(e.Problem, new(*formatError)):
		return formatFlaw
	case errors.As(e.Problem, new(*unreadError)):
		return unreadFlaw
	}
	return damagedFlaw
}

// formatError says that another version of weir has written a file.
type formatError struct{ format int }

func (e *formatError) Error() string {
	return fmt.Sprintf("it has format %d, which another version of weir has written; this version reads format %d", e.format, Format)
}

// unreadError says that a file cannot be read.
type unreadError struct{ error }

func (e *unreadError) Unwrap() error { return e.error }

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
