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

// formatError says that another version of weir has written a file.
type formatError struct{ format int }

func (e *formatError) Error() string {
	return fmt.Sprintf("it has format %d, which another version of weir has written; this version reads format %d", e.format, format)
}

// unreadError says that a file cannot be read.
type unreadError struct{ error }

func (e *unreadError) Unwrap() error { return e.error }

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
	var text, remedy string
	switch e.mark() {
	case markUnread:
		text = fmt.Sprintf("the state file cannot be read: %v", e.Problem)
		remedy = "make it readable for weir, or remove it to begin without its services"
	case markFormat:
		text = fmt.Sprintf("%s: the state file cannot be used: %v", e.File, e.Problem)
		remedy = "start the version that has written it, or move the file away to begin without its services"
	default:
		text = fmt.Sprintf("%s:%d:%d: the state file is damaged: %v", e.File, e.Line, e.Column, e.Problem)
		if e.Aside != "" {
			remedy = fmt.Sprintf("put a good copy in its place, or remove it to begin without its services (it stays as %s)", e.Aside)
		}
	}
	if e.moved {
		remedy = "it is now " + e.Aside
	}
	if remedy == "" {
		return text
	}
	return text + "; " + remedy
}

// mark says what is wrong with the file.
func (e *CorruptError) mark() string {
	switch {
	case errors.As(e.Problem, new(*formatError)):
		return markFormat
	case errors.As(e.Problem, new(*unreadError)):
		return markUnread
	}
	return markDamaged
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
