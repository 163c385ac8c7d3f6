package problems

import (
	"errors"
	"strings"

	"weir.io/weir/internal/model"
)

// placed is an error that knows where what is wrong stands.
type placed interface {
	error
	Place() model.Place
}

// fixable is an error that knows what to do about it.
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

// of returns what an error says is wrong with a part.
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

// split returns the errors that one is made of, where they are independent of each other: of
// errors.Join, and lists of what is wrong with a file. What is wrapped with words stays whole.
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

// lists reports whether an error says what others say, line by line, and no more.
func lists(err error, parts []error) bool {
	texts := make([]string, len(parts))
	for i, e := range parts {
		texts[i] = e.Error()
	}
	return err.Error() == strings.Join(texts, "\n")
}
