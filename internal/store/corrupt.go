package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
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
