package model_test

import (
	"fmt"
	"testing"

	"weir.io/weir/internal/model"
)

// A value without a name can come out of the kernel's memory: it has to print.
func TestUnknownValuesPrint(t *testing.T) {
	for want, value := range map[string]fmt.Stringer{
		"protocol(99)":   model.Protocol(99),
		"mode(99)":       model.Mode(99),
		"policy(99)":     model.Policy(99),
		"affinity(99)":   model.Affinity(99),
		"state(0)":       model.BackendState(0),
		"segment(9):100": model.Segment{Kind: 9, ID: 100},
	} {
		if got := value.String(); got != want {
			t.Errorf("an unknown value prints %q, want %q", got, want)
		}
	}
}
