package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// otherABI makes the director's maps of another version: what is in them has other
// places, other sizes, and there is one reason more. What is remembered of flows looks
// the same.
var otherABI = [][2]string{
	{"struct settings {\n", "struct settings {\n\t__u64 later;\n"},
	{"\t__be16 port;\n\t__u8 protocol;\n\t__u8 pad;\n};\n\nstruct endpoint6 {", "\t__u8 protocol;\n\t__u8 pad;\n\t__be16 port;\n\t__u32 later;\n};\n\nstruct endpoint6 {"},
	{"\tstruct address address;\n\tstruct address vip; /* of its service", "\tstruct address vip;\n\tstruct address address; /* of its service"},
	{"\tREASON_COUNT,", "\tDROP_LATER,\n\tREASON_COUNT,"},
}

// buildOther builds weir with another ABI, and returns the binary's path.
func buildOther(t *testing.T) string {
	t.Helper()
	sources, generated := t.TempDir(), t.TempDir()
	if err := os.CopyFS(sources, os.DirFS("../bpf")); err != nil {
		t.Fatal(err)
	}
	edit(t, filepath.Join(sources, "types.h"), otherABI)
	compile(t, filepath.Join(sources, "director.bpf.c"), generated)
	// The compiler of Go reads these in place of those of this version.
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	directory, err := filepath.Abs("../internal/datapath")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"director_bpfel.go", "director_bpfel.o"} {
		overlay.Replace[filepath.Join(directory, name)] = filepath.Join(generated, name)
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list, binary := filepath.Join(generated, "overlay.json"), filepath.Join(generated, "weir")
	if err := os.WriteFile(list, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-overlay", list, "-o", binary, "../cmd/weir").CombinedOutput(); err != nil {
		t.Fatalf("build another version of weir: %v\n%s", err, out)
	}
	return binary
}

// edit replaces texts in a file, each of which must be there once.
func edit(t *testing.T, path string, changes [][2]string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, change := range changes {
		if n := strings.Count(text, change[0]); n != 1 {
			t.Fatalf("%s has %d times what is to be replaced: %q", path, n, change[0])
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// compile makes the object and its Go side from other sources, as go generate does.
func compile(t *testing.T, source, into string) {
	t.Helper()
	data, err := os.ReadFile("../internal/datapath/generate.go")
	if err != nil {
		t.Fatal(err)
	}
	_, directive, found := strings.Cut(string(data), "//go:generate go ")
	if !found {
		t.Fatal("generate.go does not say how to generate")
	}
	args := strings.Fields(directive)
	for i, arg := range args {
		switch arg {
		case "director":
			args[i] = "-output-dir=" + into + " director"
		case "../../bpf/director.bpf.c":
			args[i] = source
		}
	}
	cmd := exec.Command("go", strings.Fields(strings.Join(args, " "))...)
	cmd.Dir, cmd.Env = "../internal/datapath", append(os.Environ(), "GOPACKAGE=datapath")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compile another version of the director (clang-19, llvm-19, libbpf-dev; make deps): %v\n%s", err, out)
	}
}
