package record

import "fmt"

// Check is a target and what was reached.
type Check struct {
	Name     string  `json:"name"`
	What     string  `json:"what"`
	Value    Number  `json:"value"` // null when it could not be measured, which misses the target
	Unit     string  `json:"unit,omitempty"`
	Relation string  `json:"relation"` // >= or <=: of the value to the target
	Target   float64 `json:"target"`
	OK       bool    `json:"ok"`
}

// Verdict is one word: ok or MISSED.
func (c Check) Verdict() string {
	if c.OK {
		return "ok"
	}
	return "MISSED"
}

// Reached is the value with its unit.
func (c Check) Reached() string {
	if !c.Value.Finite() {
		return "not measured"
	}
	return WithUnit(float64(c.Value), c.Unit)
}

// Wanted is the target with its unit and relation.
func (c Check) Wanted() string {
	return c.Relation + " " + WithUnit(c.Target, c.Unit)
}

// String is how a check is printed.
func (c Check) String() string {
	return fmt.Sprintf("%-6s %s: %s (%s)", c.Verdict(), c.Name, c.Reached(), c.Wanted())
}
