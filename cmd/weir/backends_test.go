package main

import (
	"testing"

	"weir.io/weir/internal/model"
)

func TestWhyABackendHasLess(t *testing.T) {
	down := &model.BackendHealth{State: model.HealthDown, Reason: "status", Detail: "500"}
	for _, test := range []struct {
		backend model.BackendStatus
		want    string
	}{
		{model.BackendStatus{}, ""},
		{model.BackendStatus{Health: &model.BackendHealth{State: model.HealthUp}}, ""},
		{model.BackendStatus{Health: down}, "status: 500"},
		{model.BackendStatus{Health: down, Strain: &model.BackendStrain{Parts: 4, Refused: 3}}, "status: 500"},
		{model.BackendStatus{Strain: &model.BackendStrain{Parts: 8, Refused: 0.4}}, "strain: in a second 0.4 connections are refused, and 0 find no room"},
		{model.BackendStatus{Strain: &model.BackendStrain{Parts: 5, Overflows: 12.4}}, "strain: in a second 0 connections are refused, and 12.4 find no room; it keeps 5/8 of its share"},
		{model.BackendStatus{Strain: &model.BackendStrain{Parts: 7}}, "strain: none any more; it keeps 7/8 of its share"},
	} {
		if got := whyOf(&test.backend); got != test.want {
			t.Errorf("of %+v it is said %q, want %q", test.backend, got, test.want)
		}
	}
}
