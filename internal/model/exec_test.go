package model_test

import (
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// Only a director's own file may have it run programs, unless that names them for sets.
func TestProgramsOfSets(t *testing.T) {
	for _, test := range []struct {
		name    string
		own     int
		allowed *model.ExecChecks
		want    string
	}{
		{"the file's", 1, nil, ""},
		{"a set's", 0, nil, `services[0].health.exec[0]: is a program on the director, which services in sets may run only if the director's file names it in director.exec-checks.sets: "/usr/local/bin/check" is not there`},
		{"a set's, others are allowed", 0, &model.ExecChecks{Sets: []string{"/usr/local/bin", "/usr/local/bin/check2"}}, `"/usr/local/bin/check" is not there`},
		{"a set's, allowed", 0, &model.ExecChecks{Sets: []string{"/bin/true", "/usr/local/bin/check"}}, ""},
	} {
		c := config()
		c.Services = c.Services[:1]
		c.Services[0].Health = &model.HealthCheck{Kind: model.CheckExec, Exec: []string{"/usr/local/bin/check", "--all"}}
		c.Director.ExecChecks = test.allowed
		c.SetDefaults()
		switch err := c.ValidateShared(test.own); {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: the error is %v, want one with %q", test.name, err, test.want)
		}
	}
}
