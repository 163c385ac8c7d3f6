package store

import (
	"errors"
	"fmt"
)

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
	return fmt.Sprintf("it has format %d, which another version of weir has written; this version reads format %d", e.format, format)
}

// unreadError says that a file cannot be read.
type unreadError struct{ error }

func (e *unreadError) Unwrap() error { return e.error }
