package record

import (
	"maps"
	"slices"
	"strings"
)

// references are the subjects that the others are compared with, by the first one that a scenario
// has: only handing the packet on, the least that a forwarder can do, and no balancer at all.
var references = []string{"redirect", "reflect", "swap", "direct"}

// References returns the subjects that others are compared with: the first one that a scenario has
// counts.
func References() []string { return slices.Clone(references) }

// IsReference is whether others are compared with that subject.
func IsReference(subject string) bool { return slices.Contains(references, subject) }

// Reference returns the measurement that m is compared with: the same quantity under the same
// conditions, or, where the reference knows fewer of them (a bare redirect has no backends), under
// those that it shares. Nil if there is none.
func (s *Scenario) Reference(m *Measurement) *Measurement {
	if IsReference(m.Subject) {
		return nil
	}
	for _, subject := range references {
		if found := s.Nearest(subject, m.Conditions, m.Quantity.Name); found != nil {
			return found
		}
	}
	return nil
}

// Nearest returns that subject's measurement whose conditions are all among the given ones; if
// there are several, the one with the most conditions; nil if there is none.
func (s *Scenario) Nearest(subject string, at Conditions, quantity string) *Measurement {
	var best *Measurement
	for _, m := range s.Measurements {
		if m.Subject == subject && m.Quantity.Name == quantity && m.Conditions.HoldIn(at) &&
			(best == nil || len(m.Conditions) > len(best.Conditions)) {
			best = m
		}
	}
	return best
}

// HoldIn is whether all of these conditions are among the others.
func (c Conditions) HoldIn(other Conditions) bool {
	for key, value := range c {
		if other[key] != value {
			return false
		}
	}
	return true
}

// String writes the conditions in the order of their names: "flows=1 frame=64".
func (c Conditions) String() string {
	words := make([]string, 0, len(c))
	for _, key := range slices.Sorted(maps.Keys(c)) {
		words = append(words, key+"="+c[key])
	}
	return strings.Join(words, " ")
}
