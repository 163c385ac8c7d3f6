package problems

import (
	"errors"
	"strings"

	"weir.io/weir/internal/model"
)

// placed is an error that names the place of its problem.
type placed interface {
	error
	Place() model.Place
}

// fixable is an error that names a remedy.
type fixable interface {
	error
	Fix() string
}

// Fixed returns an error that says what to do about it.
func Fixed(err error, fix string) error {
	if err == nil {
		return nil
	}
	return &withFix{err, fix}
}

type withFix struct {
	error
	fix string
}

// Unwrap returns what is wrong.
func (e *withFix) Unwrap() error { return e.error }

// Fix says what to do about it.
func (e *withFix) Fix() string { return e.fix }

// of returns the problems of a part that an error tells.
func of(kind model.ProblemKind, name string, severity model.Severity, err error) (found []model.Problem) {
	if err == nil {
		return nil
	}
	for _, e := range split(err) {
		p := model.Problem{Kind: kind, Part: name, Severity: severity, Text: strings.TrimSpace(e.Error())}
		var at placed
		if errors.As(e, &at) {
			p.Place = at.Place()
		}
		var with fixable
		if errors.As(e, &with) {
			p.Fix = with.Fix()
		}
		found = append(found, p)
	}
	return found
}

// split returns the independent errors that an error consists of: those of errors.Join, and of
// lists of a file's errors. Errors that are wrapped with words stay whole.
func split(err error) []error {
	many, is := err.(interface{ Unwrap() []error })
	if !is || len(many.Unwrap()) == 0 || !lists(err, many.Unwrap()) {
		return []error{err}
	}
	var all []error
	for _, e := range many.Unwrap() {
		all = append(all, split(e)...)
	}
	return all
}

// lists reports whether an error's text is just those of others, line by line.
func lists(err error, parts []error) bool {
	texts := make([]string, len(parts))
	for i, e := range parts {
		texts[i] = e.Error()
	}
	return err.Error() == strings.Join(texts, "\n")
}
