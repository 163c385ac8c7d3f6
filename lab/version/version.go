// Package version builds weir as another version of itself, for tests of upgrades and for
// comparisons: with the same maps, with different ones, or as it was at a commit.
package version

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// otherABI makes the maps of another version: fields have other places and sizes, and there is one
// more reason. The flow memory looks the same.
var otherABI = map[string][][2]string{"abi/types.h": {
	{"struct settings {\n", "struct settings {\n\t__u64 later;\n"},
	{"\t__be16 port;\n\t__u8 protocol;\n\t__u8 pad;\n};\n\nstruct endpoint6 {", "\t__u8 protocol;\n\t__u8 pad;\n\t__be16 port;\n\t__u32 later;\n};\n\nstruct endpoint6 {"},
	{"\tstruct address address;\n\t/* Of its service,", "\tstruct address vip;\n\t/* Of its service,"},
	{"\tstruct address vip;\n\t__be16 port;     /* NAT, redirect", "\tstruct address address;\n\t__be16 port;     /* NAT, redirect"},
	{"\tREASON_COUNT,", "\tDROP_LATER,\n\tREASON_COUNT,"},
}, "abi/host_types.h": {
	{"struct host_service {\n", "struct host_service {\n\t__u32 later;\n"},
	{"\t__u32 service;\n\tstruct address address;\n", "\tstruct address address;\n\t__u32 service;\n"},
	{"\tHOST_REASON_COUNT,", "\tHOST_DROP_LATER,\n\tHOST_REASON_COUNT,"},
}}

// generated are the packages that say how programs, and the types of their maps, are generated.
var generated = []string{"datapath", "datapath/abi", "agent"}

// The names of the versions, as weir status shows them.
const (
	SameABI  = "another-version"
	OtherABI = "another-abi"
)

// BuildSameABI builds weir from the sources at root into dir, with the same programs and maps, but
// another name, and with these flags besides. It returns the path of the binary.
func BuildSameABI(ctx context.Context, root, dir string, flags ...string) (string, error) {
	return build(ctx, root, filepath.Join(dir, "weir-"+SameABI), SameABI, flags...)
}

// BuildOtherABI builds weir from the sources at root into dir, with programs whose maps look
// different, and with these flags besides. It returns the path of the binary. It needs what "make generate"
// needs.
func BuildOtherABI(ctx context.Context, root, dir string, flags ...string) (string, error) {
	sources := filepath.Join(dir, "bpf")
	if err := os.CopyFS(sources, os.DirFS(filepath.Join(root, "bpf"))); err != nil {
		return "", fmt.Errorf("copy the programs: %w", err)
	}
	for file, changes := range otherABI {
		if err := edit(filepath.Join(sources, file), changes); err != nil {
			return "", err
		}
	}
	for _, name := range generated {
		into, err := filepath.Abs(filepath.Join(root, "internal", name))
		if err != nil {
			return "", err
		}
		if err := compile(ctx, into, sources, dir); err != nil {
			return "", err
		}
	}
	// The Go compiler reads these files in place of this version's.
	overlay, err := overlayOf(root, dir)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, text, 0o644); err != nil {
		return "", fmt.Errorf("write overlay: %w", err)
	}
	return build(ctx, root, filepath.Join(dir, "weir-"+OtherABI), OtherABI, append(flags, "-overlay", list)...)
}

// overlay names files that the Go compiler reads in place of others.
type overlay struct{ Replace map[string]string }

// overlayOf puts all that was generated into dir in the place of this version's. A program that was left out would
// have this version's maps.
func overlayOf(root, dir string) (o overlay, err error) {
	o.Replace = map[string]string{}
	for _, name := range generated {
		into, err := filepath.Abs(filepath.Join(root, "internal", name))
		if err != nil {
			return o, err
		}
		err = filepath.WalkDir(into, func(path string, _ fs.DirEntry, err error) error {
			if base := filepath.Base(path); err == nil && (strings.HasSuffix(base, "_bpfel.go") || strings.HasSuffix(base, "_bpfel.o")) {
				o.Replace[path] = filepath.Join(dir, base)
			}
			return err
		})
		if err != nil {
			return o, fmt.Errorf("find what is generated: %w", err)
		}
	}
	for path, by := range o.Replace {
		if !exists(by) {
			return o, fmt.Errorf("nothing generates %s of another version", path)
		}
	}
	return o, nil
}

// BuildCommit builds weir as it was at a commit of the repository at root into dir. It returns the
// path of the binary.
func BuildCommit(ctx context.Context, root, dir, commit string) (string, error) {
	sources, archive := filepath.Join(dir, "sources-"+commit), filepath.Join(dir, commit+".tar")
	if err := os.MkdirAll(sources, 0o755); err != nil {
		return "", fmt.Errorf("make a directory for sources: %w", err)
	}
	for _, args := range [][]string{
		{"git", "-C", root, "archive", "--format=tar", "--output=" + archive, commit},
		{"tar", "-C", sources, "-xf", archive},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("unpack the sources of commit %s: %w\n%s", commit, err, out)
		}
	}
	return build(ctx, sources, filepath.Join(dir, "weir-"+commit), commit)
}

// build runs the Go compiler with the flags of the Makefile, so that most packages are already
// compiled.
func build(ctx context.Context, root, binary, name string, flags ...string) (string, error) {
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version=" + name, "-o", binary}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/weir")...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build weir as %s: %w\n%s", name, err, out)
	}
	return binary, nil
}

// NICsTag is the build tag of a weir that knows the NICs of package nic.
const NICsTag = "emulated_nic"

// withNICs is built once in a process.
var withNICs struct {
	sync.Mutex
	path string
}

// WithNICs returns the path of this weir with the NICs of package nic, beside the weir that is measured. Each
// process builds it anew.
func WithNICs(ctx context.Context) (string, error) {
	withNICs.Lock()
	defer withNICs.Unlock()
	if withNICs.path != "" {
		return withNICs.path, nil
	}
	path, err := filepath.Abs(filepath.Join("bin", "weir-nics"))
	if err == nil {
		withNICs.path, err = build(ctx, ".", path, "nics", "-tags", NICsTag)
	}
	return withNICs.path, err
}

// edit replaces texts in a file. Each must occur exactly once.
func edit(path string, changes [][2]string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read a program: %w", err)
	}
	text := string(data)
	for _, change := range changes {
		if n := strings.Count(text, change[0]); n != 1 {
			return fmt.Errorf("%s has %d times what is to be replaced: %q", path, n, change[0])
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write a program: %w", err)
	}
	return nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// directives are those that make objects, or types alone; ownFolder is where one writes to.
var ownFolder = regexp.MustCompile(`-output-dir \S+ `)

var directives = regexp.MustCompile(`(?m)^//go:generate ((?:\.\./)+bpf/)(generate|types) (.*)$`)

// compile makes a package's objects and their Go files from other sources, as go generate does.
func compile(ctx context.Context, pkg, sources, into string) error {
	files, err := filepath.Glob(filepath.Join(pkg, "*.go"))
	if err != nil {
		return err
	}
	some := false
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("find out how to generate: %w", err)
		}
		for _, directive := range directives.FindAllStringSubmatch(string(data), -1) {
			some = true
			script, args := directive[2], []string{}
			if script == "generate" {
				args = append(args, "-output-dir", into)
			}
			for _, arg := range strings.Fields(ownFolder.ReplaceAllString(directive[3], "")) {
				if source, found := strings.CutPrefix(arg, directive[1]); found {
					arg = filepath.Join(sources, source)
				}
				args = append(args, arg)
			}
			cmd := exec.CommandContext(ctx, filepath.Join(sources, script), args...)
			cmd.Dir, cmd.Env = pkg, append(os.Environ(), "GOPACKAGE="+filepath.Base(pkg), "OUTPUT_DIR="+into)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("compile another version of %s (clang-19, llvm-19, libbpf-dev; make deps): %w\n%s", pkg, err, out)
			}
		}
	}
	if !some {
		return fmt.Errorf("%s does not say how to generate", pkg)
	}
	return nil
}
