package model

import (
	"fmt"
	"strings"
)

// FieldError is one thing that is wrong with a Config.
type FieldError struct {
	Path    string // of the field, in the names of the file: services[3].backends[0].weight
	Problem string // what is wrong with it, and what would be right
	Other   string // path of the other field when two contradict each other, else empty
}

// Error returns the path and the problem on one line.
func (e FieldError) Error() string { return e.Path + ": " + e.Problem }

// FieldErrors is everything that is wrong with a Config.
type FieldErrors []FieldError

// Error returns one line per problem.
func (e FieldErrors) Error() string {
	lines := make([]string, len(e))
	for i, f := range e {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find a FieldError.
func (e FieldErrors) Unwrap() []error {
	list := make([]error, len(e))
	for i, f := range e {
		list[i] = f
	}
	return list
}

// mostProblems bounds the problems that are listed for one configuration: a small text may have a
// million services.
const mostProblems = 1000

func (e *FieldErrors) add(path, format string, args ...any) {
	e.addWithOther(path, "", format, args...)
}

func (e *FieldErrors) addWithOther(path, other, format string, args ...any) {
	if len(*e) >= mostProblems {
		return
	}
	*e = append(*e, FieldError{Path: path, Other: other, Problem: fmt.Sprintf(format, args...)})
}

// servicePath and backendPath are called only once something is wrong: a
// configuration may have a million backends.
func servicePath(i int, field string) string { return fmt.Sprintf("services[%d].%s", i, field) }

func backendPath(i, j int, field string) string {
	return fmt.Sprintf("services[%d].backends[%d].%s", i, j, field)
}
