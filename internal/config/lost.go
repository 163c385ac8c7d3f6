package config

import (
	"regexp"
	"slices"
	"strings"
)

// lostPaths are the fields whose value could not be decoded. The model's problems with the values
// in their place, and the consequences of these, are no problems of the file.
type lostPaths []string

func (l lostPaths) has(path string) bool { return slices.Contains(l, path) }

// without keeps the errors that do not depend on the lost values: those of other services, of other
// backends, and of fields that are checked alone. A value that is lost outside services may matter
// to any of them.
func (l lostPaths) without(errs Errors) Errors {
	for _, lost := range l {
		around := surroundings.FindString(lost)
		if around == "" {
			return nil
		}
		errs = slices.DeleteFunc(errs, func(e Error) bool {
			return (inside(e.Path, around) || inside(e.other, around)) && !(l.standsAlone(e.Path) && l.standsAlone(e.other))
		})
	}
	return errs
}

// standsAlone reports whether a field's problem follows from its own value, which is not lost.
func (l lostPaths) standsAlone(path string) bool {
	return path == "" || alone.MatchString(path) && !l.has(path)
}

// alone are the fields whose problems depend on no other field, except those that they name.
var alone = regexp.MustCompile(`\.(name|vip|segment|ring-size|retention|max-retention|drain|max-drain|address|mac|mtu)$`)

// surroundings are the service or the backend that a field is of.
var surroundings = regexp.MustCompile(`^services\[\d+\](\.backends\[\d+\])?`)

func inside(path, around string) bool {
	rest, found := strings.CutPrefix(path, around)
	return found && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
