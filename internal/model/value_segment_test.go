package model_test

import (
	"errors"
	"testing"

	"weir.io/weir/internal/model"
)

// What is no segment is answered with the forms that segments have.
func TestWrongSegmentsShowTheForms(t *testing.T) {
	for text, want := range map[string]string{
		"5001":       `unknown segment "5001" (one of none, vlan:ID, vxlan:VNI, geneve:VNI)`,
		"vxlna:5001": `unknown segment "vxlna"; did you mean vxlan:5001? (one of none, vlan:ID, vxlan:VNI, geneve:VNI)`,
		"vxlan":      `segment "vxlan" is not none, vlan:ID, vxlan:VNI or geneve:VNI`,
	} {
		var s model.Segment
		err := s.UnmarshalText([]byte(text))
		if err == nil || err.Error() != want {
			t.Errorf("%q is answered with %v, and not with %s", text, err, want)
		}
		if unknown := (*model.UnknownName)(nil); errors.As(err, &unknown) && text == "vxlna:5001" && unknown.Meant != "vxlan:5001" {
			t.Errorf("%q means %q", text, unknown.Meant)
		}
	}
}
