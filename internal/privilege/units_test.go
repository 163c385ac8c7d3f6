package privilege_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
)

// units are systemd's files, and what they start.
var units = map[string]privilege.Process{"weir.service": privilege.Run, "weir-agent.service": privilege.Agent, "weir-bfd.service": privilege.BFD}

// Units give their processes the capabilities that these need for every configuration but one
// with agent.namespaces, or with programs of checks as another user than the unit's, and no others; and systemd understands each line of them. weir bfd has a unit of
// its own, so weir run needs none to hand on.
func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Fatal("nobody says whether systemd understands them (Debian's package systemd has it):", err)
	}
	for name, process := range units {
		text, err := os.ReadFile(filepath.Join("..", "..", "contrib", "systemd", name))
		if err != nil {
			t.Fatal(err)
		}
		var want, handedOn []string
		if process == privilege.Run {
			for _, n := range privilege.Needs(privilege.BFD) {
				handedOn = append(handedOn, n.Capability)
			}
		}
		special := model.Config{Agent: model.Agent{Namespaces: []string{"x"}}, Director: model.Director{ExecChecks: &model.ExecChecks{User: "x"}}}
		for _, n := range privilege.Needs(process) {
			if n.NeededBy(&special) == "" && !slices.Contains(handedOn, n.Capability) {
				want = append(want, n.Capability)
			}
		}
		for _, key := range []string{"CapabilityBoundingSet", "AmbientCapabilities"} {
			if got := strings.Fields(setting(string(text), key)); !slices.Equal(got, want) {
				t.Errorf("%s gives %q by %s, and weir %s needs %q", name, got, key, process, want)
			}
		}
		// It looks for the program, too, which is not installed here.
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "/usr/bin/weir", self)), 0o644); err != nil {
			t.Fatal(err)
		}
		verify := exec.Command(analyze, "verify", "--man=no", "--recursive-errors=no", file)
		if out, err := verify.CombinedOutput(); err != nil || strings.Contains(string(out), name) {
			t.Errorf("systemd-analyze says of %s, error %v:\n%s", name, err, out)
		}
	}
}

// setting returns the value of a key that is there once.
func setting(unit, key string) string {
	for line := range strings.Lines(unit) {
		if value, is := strings.CutPrefix(line, key+"="); is {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
