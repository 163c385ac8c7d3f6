package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/bench/policies"
	"weir.io/weir/lab/record"
)

func TestSimulate(t *testing.T) {
	var out, progress bytes.Buffer
	if code := execute(t.Context(), []string{"simulate", "--smoke", "--seed", "5", "weights", "routes"}, &out, &progress); code != 0 {
		t.Fatalf("exit status %d: %s", code, &progress)
	}
	for _, want := range []string{"weights: p99", "routes: elsewhere"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q: %s", want, &out)
		}
	}
	if !strings.Contains(progress.String(), "events per second") {
		t.Errorf("it does not say how fast it was: %s", &progress)
	}
}

func TestSimulateRefuses(t *testing.T) {
	for says, args := range map[string][]string{
		`invalid argument "weather"`: {"weather"},
		"--rounds 0":                 {"--rounds", "0"},
		"--docs would put":           {"--docs", "--smoke"},
		"--docs writes":              {"--docs", "routes"},
	} {
		var out bytes.Buffer
		if code := execute(t.Context(), append([]string{"simulate"}, args...), &out, &out); code != 1 || !strings.Contains(out.String(), says) {
			t.Errorf("simulate %v: exit status %d, and it says %s", args, code, &out)
		}
	}
}

// The document in docs/ is the one that its record makes: it was not edited, and the code that
// writes it has not changed since.
func TestDocumentIsTheRecords(t *testing.T) {
	const root, source, path = "..", policiesRecord, policiesDocument
	r, err := record.Read(filepath.Join(root, source))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range policies.Names() {
		if r.Scenario(name) == nil {
			t.Errorf("the record has no %s", name)
		}
	}
	r.Checks = judgeBy(simulated, r)
	if len(r.Checks) != len(simulated) {
		t.Errorf("the checks of policies are %v", r.Checks)
	}
	for _, c := range r.Checks {
		if !c.OK {
			t.Errorf("%s", c)
		}
	}
	d, err := policies.Document(r, source, path)
	if err != nil {
		t.Fatal(err)
	}
	made := t.TempDir()
	if err := d.Write(filepath.Join(made, path)); err != nil {
		t.Fatal(err)
	}
	want, _ := os.ReadFile(filepath.Join(made, path))
	got, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what %s gives: write it with \"bench report --out %[1]s %[2]s\"", path, source)
	}
	if figures, there := figuresIn(t, made), figuresIn(t, root); !slices.Equal(figures, there) {
		t.Errorf("the figures in docs/results/policies are %q, want %q", there, figures)
	}
}

func figuresIn(t *testing.T, root string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "docs/results/policies/*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	return files
}
