package model

import (
	"fmt"
	"time"
)

// Duration is a time.Duration that is written as text: 50ms, 60s, 24h. The zero value is none, and
// is not written as text: where it has a meaning, it means that no duration was given.
type Duration time.Duration

// String returns "1m30s".
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes what String returns.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a number with a unit, or several: 50ms, 1m30s.
func (d *Duration) UnmarshalText(text []byte) error {
	value, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration; write 500ms, 60s or 24h, say", text)
	}
	if value <= 0 {
		return fmt.Errorf("%s is not a duration above 0", text)
	}
	*d = Duration(value)
	return nil
}
