package datapath

import (
	"testing"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/model"
)

// Every reason can be said in words.
func TestReasonsHaveTexts(t *testing.T) {
	spec, err := loadDirector()
	must(t, err)
	names, err := bpfload.EnumNames(spec.Types, "reason", "")
	must(t, err)
	for _, name := range names {
		if model.ReasonText(name) == "" {
			t.Errorf("internal/model says nothing about the reason %s", name)
		}
	}
}
