package record

import (
	"encoding/json"
	"fmt"
	"math"
)

// Number is a value that may be missing: NaN, or infinite. JSON cannot express these, so they are
// written as null, and null is read as NaN.
type Number float64

// Values are numbers, in the order of the rounds.
type Values []float64

// Finite is whether there is a value.
func (n Number) Finite() bool {
	return !math.IsNaN(float64(n)) && !math.IsInf(float64(n), 0)
}

// MarshalJSON writes null for a missing value.
func (n Number) MarshalJSON() ([]byte, error) {
	if !n.Finite() {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// UnmarshalJSON reads a number or null.
func (n *Number) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		*n = Number(math.NaN())
		return nil
	}
	return json.Unmarshal(data, (*float64)(n))
}

// MarshalJSON writes the numbers as a list, null for missing values.
func (v Values) MarshalJSON() ([]byte, error) {
	numbers := make([]Number, len(v))
	for i, value := range v {
		numbers[i] = Number(value)
	}
	return json.Marshal(numbers)
}

// UnmarshalJSON reads a list of numbers and nulls.
func (v *Values) UnmarshalJSON(data []byte) error {
	var numbers []Number
	if err := json.Unmarshal(data, &numbers); err != nil {
		return fmt.Errorf("rounds: %w", err)
	}
	*v = make(Values, len(numbers))
	for i, number := range numbers {
		(*v)[i] = float64(number)
	}
	return nil
}
