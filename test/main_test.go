// Package test holds the end-to-end tests: real clients and servers, and real weir
// processes, in network namespaces. One file per claim, its topology at its top.
package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// weir is the path of the binary that the tests run, and built the directory of those that are built
// once for all of them: never that of the program to test, where they would stay if the tests are killed.
var weir, built string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// builtWeir names the environment variable of the program to test where none can be built: in a
// guest.
const builtWeir = "WEIR_BINARY"

func run(m *testing.M) int {
	var err error
	if built, err = os.MkdirTemp("", "weir-test"); err != nil {
		fmt.Fprintln(os.Stderr, "make directory for the binaries:", err)
		return 1
	}
	defer os.RemoveAll(built)
	if weir = os.Getenv(builtWeir); weir != "" {
		return m.Run()
	}
	weir = filepath.Join(built, "weir")
	if out, err := exec.Command("go", "build", "-o", weir, "../cmd/weir").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build weir: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
