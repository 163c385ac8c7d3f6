package model

import (
	"fmt"
	"slices"
)

// ValidateDocuments returns what is wrong with services and the logs that a client gives with them,
// by fields such as documents[3].log.generations[0].slots, and fills in the services' defaults.
func ValidateDocuments(documents []Document) error {
	return ValidateChangedDocuments(documents, func(int) bool { return false })
}

// ValidateChangedDocuments does what ValidateDocuments does for documents of which some are known
// to be valid by themselves, and to have their defaults.
func ValidateChangedDocuments(documents []Document, known func(i int) bool) error {
	c := Config{Services: make([]Service, len(documents))}
	for i := range documents {
		c.Services[i] = documents[i].Service
	}
	c.Director.Limits = Limits{Services: MaxServices, Backends: MaxBackends, RingMemory: MaxRingMemory, Fragments: MaxFragments, SourceRanges: MaxSourceRanges}
	c.SetDefaults()
	if err := c.ValidateChanged(len(documents), known); err != nil {
		return err
	}
	var errs FieldErrors
	for i := range documents {
		if known(i) {
			continue
		}
		documents[i].Service = c.Services[i]
		if path, problem := documents[i].Log.problem(); problem != "" {
			errs = append(errs, FieldError{Path: fmt.Sprintf("documents[%d].log%s", i, path), Problem: problem})
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

// Validate returns what is wrong with a log that another program has written, by fields such as
// log.generations[0].slots.
func (l *Log) Validate() error {
	if path, problem := l.problem(); problem != "" {
		return FieldErrors{{Path: "log" + path, Problem: problem}}
	}
	return nil
}

// problem says what is wrong with a log so that rings could not be made from it: weir writes no
// such log.
func (l *Log) problem() (path, problem string) {
	if len(l.Generations) == 0 {
		return ".generations", "is empty; the newest one places connections"
	}
	for i := range l.Generations {
		g := &l.Generations[i]
		path := fmt.Sprintf(".generations[%d]", i)
		switch {
		case g.Number == 0 || i > 0 && g.Number >= l.Generations[i-1].Number:
			return path + ".number", "is not below that of the generation before; the newest comes first, and 1 is the oldest"
		case g.Slots > MaxRingSize || !isPrime(g.Slots):
			return path + ".slots", fmt.Sprintf("%d is not a prime up to %d", g.Slots, MaxRingSize)
		case !slices.IsSortedFunc(g.Members, byBackend):
			return path + ".members", "are not in the order of their addresses and ports"
		case g.Kept != nil && g.Kept.Size() != int(g.Slots):
			return path + ".kept", "is not of so many slots"
		}
		for n := range g.Members {
			switch m := &g.Members[n]; {
			case !m.Backend.Addr().IsValid():
				return fmt.Sprintf("%s.members[%d].backend", path, n), "is no address with a port"
			case m.Weight == 0:
				return fmt.Sprintf("%s.members[%d].weight", path, n), "is 0; who owns no slots is no member"
			case n > 0 && byBackend(g.Members[n-1], *m) == 0:
				return fmt.Sprintf("%s.members[%d].backend", path, n), "is there twice"
			}
		}
	}
	return "", ""
}

func byBackend(a, b Member) int { return a.Backend.Compare(b.Backend) }
