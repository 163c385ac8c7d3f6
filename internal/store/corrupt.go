package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// CorruptError is a state file that is damaged. It stays in place, so that every start refuses it,
// and has a second name, so that it is not lost with the first.
type CorruptError struct {
	File         string
	Line, Column int // from 1
	Problem      error
	Aside        string // its second name; empty if it could not have one
	copied       string // the owner whose set the file has, if that is another's
	moved        bool   // the second name is the only one now
}

// Error names the file, the place, and what to do.
func (e *CorruptError) Error() string {
	text := fmt.Sprintf("%s:%d:%d: the state file is damaged: %v", e.File, e.Line, e.Column, e.Problem)
	switch {
	case e.moved:
		text += fmt.Sprintf("; it is now %s", e.Aside)
	case e.Aside != "":
		text += fmt.Sprintf("; put a good copy in its place, or remove it to begin without its services (it stays as %s)", e.Aside)
	}
	return text
}

// asideMark is between a damaged file's name and a number, in its second name.
const asideMark = ".corrupt-"

// Aside returns, in order, the second names of damaged files in a directory of a director's or an
// agent's state: they are kept until an operator removes them.
func Aside(dir string) (names []string) {
	for _, in := range []string{dir, filepath.Join(dir, "group"), filepath.Join(dir, "group", "segments")} {
		entries, _ := os.ReadDir(in) // a missing directory is reported elsewhere
		for _, entry := range entries {
			if strings.Contains(entry.Name(), asideMark) {
				names = append(names, filepath.Join(in, entry.Name()))
			}
		}
	}
	return names
}

// moveAside leaves the file only its second name.
func (e *CorruptError) moveAside() bool {
	e.moved = e.Aside != "" && os.Remove(e.File) == nil
	return e.moved
}

// Unwrap returns the problem.
func (e *CorruptError) Unwrap() error { return e.Problem }

// readSet reads an owner's file. A damaged one gives a *CorruptError without a second name.
func readSet(path, owner string) (written, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return written{}, fmt.Errorf("read the state: %w", err)
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

// keepAside gives a file a new second name and returns it.
func keepAside(path string) string {
	file, err := os.Stat(path)
	if err != nil {
		return ""
	}
	for n := 1; n < 100; n++ {
		aside := fmt.Sprintf("%s%s%d", path, asideMark, n)
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
