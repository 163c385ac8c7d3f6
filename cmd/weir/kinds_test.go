package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// Some code tells every kind of problem: what fails there is not only in the log.
func TestEveryKindOfProblemIsTold(t *testing.T) {
	var code strings.Builder
	for _, pattern := range []string{"*.go", "../../internal/desired/*.go", "../../internal/store/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(text)
		}
	}
	for _, row := range model.ProblemKinds {
		name := "Problem" + strings.ToUpper(string(row.Kind[:1])) + string(row.Kind[1:])
		if row.Kind == model.ProblemBGP || row.Kind == model.ProblemBFD || row.Kind == model.ProblemAPI {
			name = "Problem" + strings.ToUpper(string(row.Kind))
		}
		if !strings.Contains(code.String(), "model."+name+",") {
			t.Errorf("nobody tells problems of kind %s", row.Kind)
		}
	}
}
