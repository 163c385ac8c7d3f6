package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A process that is broken into has no rights that it could easily give up: systemd's exposure
// level of the units gets no worse.
func TestUnitsGiveUpRights(t *testing.T) {
	t.Parallel()
	for unit, most := range map[string]int{"weir.service": 20, "weir-agent.service": 20, "weir-bfd.service": 20} {
		path := filepath.Join("..", "contrib", "systemd", unit)
		out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", fmt.Sprintf("--threshold=%d", most), path).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v, want an exposure of at most %.1f\n%s", unit, err, float64(most)/10, out)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"MemoryMax=", "SystemCallFilter=", "UMask=", "Environment=GOMEMLIMIT="} {
			if !strings.Contains(string(text), "\n"+line) {
				t.Errorf("%s has no %s", unit, line)
			}
		}
	}
}
