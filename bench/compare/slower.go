package compare

import (
	"errors"
	"fmt"
	"math"

	"weir.io/weir/lab/record"
)

// ErrNothingInCommon says that two records have no measurement that could be compared.
var ErrNothingInCommon = errors.New("the records have no measurement in common")

// Slower returns the changes for the worse by more than that many percent, those of references
// separately. A reference has nothing to be compared with: its change is the machine's, not weir's.
func (r *Result) Slower(percent float64) (slower, references []Change) {
	for _, c := range r.Changes {
		within := math.Abs(float64(c.Change))*100 <= percent
		switch {
		case c.Verdict != Slower || within:
		case record.IsReference(c.Subject):
			references = append(references, c)
		default:
			slower = append(slower, c)
		}
	}
	return slower, references
}

// NoneSlower is an error if something got slower by more than that many percent, or if no
// measurement could have shown it: silence would be taken for good news.
func (r *Result) NoneSlower(percent float64) error {
	if r.Compared == r.Unclear {
		return fmt.Errorf("none of %d measurements has enough rounds to tell whether it got slower", r.Compared)
	}
	slower, _ := r.Slower(percent)
	if len(slower) == 0 {
		return nil
	}
	things := "measurements are"
	if len(slower) == 1 {
		things = "measurement is"
	}
	return fmt.Errorf("%d %s slower by more than %g %%", len(slower), things, percent)
}
