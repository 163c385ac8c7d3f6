package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// otherABI makes the maps of another version: what is in them has other places, other
// sizes, and there is one reason more. What is remembered of flows looks the same.
var otherABI = map[string][][2]string{"types.h": {
	{"struct settings {\n", "struct settings {\n\t__u64 later;\n"},
	{"\t__be16 port;\n\t__u8 protocol;\n\t__u8 pad;\n};\n\nstruct endpoint6 {", "\t__u8 protocol;\n\t__u8 pad;\n\t__be16 port;\n\t__u32 later;\n};\n\nstruct endpoint6 {"},
	{"\tstruct address address;\n\tstruct address vip; /* of its service", "\tstruct address vip;\n\tstruct address address; /* of its service"},
	{"\tREASON_COUNT,", "\tDROP_LATER,\n\tREASON_COUNT,"},
}, "host_types.h": {
	{"struct host_service {\n", "struct host_service {\n\t__u32 later;\n"},
	{"\t__u32 service;\n\tstruct address address;\n", "\tstruct address address;\n\t__u32 service;\n"},
	{"\tHOST_REASON_COUNT,", "\tHOST_DROP_LATER,\n\tHOST_REASON_COUNT,"},
}}

// generated are the packages that have a program, and how their files begin.
var generated = map[string]string{"datapath": "director", "agent": "host"}

// buildOther builds weir with another ABI, and returns the binary's path.
func buildOther(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	sources := filepath.Join(dir, "bpf")
	if err := os.CopyFS(sources, os.DirFS("../bpf")); err != nil {
		t.Fatal(err)
	}
	for file, changes := range otherABI {
		edit(t, filepath.Join(sources, file), changes)
	}
	// The compiler of Go reads what is made of them in place of what this version has.
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, stem := range generated {
		into, err := filepath.Abs(filepath.Join("../internal", name))
		if err != nil {
			t.Fatal(err)
		}
		compile(t, into, sources, dir)
		for _, suffix := range []string{"_bpfel.go", "_bpfel.o"} {
			overlay.Replace[filepath.Join(into, stem+suffix)] = filepath.Join(dir, stem+suffix)
		}
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "weir")
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

// compile makes a package's object and its Go side from other sources, as go generate
// does.
func compile(t *testing.T, pkg, sources, into string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(pkg, "generate.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, directive, found := strings.Cut(string(data), "//go:generate go tool bpf2go ")
	if !found {
		t.Fatalf("%s does not say how to generate", pkg)
	}
	args := []string{"tool", "bpf2go", "-output-dir", into}
	for _, arg := range strings.Fields(directive) {
		if source, found := strings.CutPrefix(arg, "../../bpf/"); found {
			arg = filepath.Join(sources, source)
		}
		args = append(args, arg)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = pkg, append(os.Environ(), "GOPACKAGE="+filepath.Base(pkg))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compile another version of %s (clang-19, llvm-19, libbpf-dev; make deps): %v\n%s", pkg, err, out)
	}
}
