package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// binary is a compiled test package.
type binary struct {
	name string   // last element of its path
	dir  string   // of its source, with testdata
	path string   // of the test binary
	args []string // flags of the test binary

	command bool // it is a shell without tests
}

// inGuest is its directory's name in the guest: tests run in order of these names.
func (b binary) inGuest(position int) string { return fmt.Sprintf("%02d-%s", position, b.name) }

// payload is where what is compiled for guests lies.
func (g guests) payload(architecture string) string {
	return filepath.Join(g.dir, "payload", architecture)
}

// compile builds the tests, the guest's init and, for tests of weir as a process, weir for an
// architecture, statically linked.
func (g guests) compile(architecture string) ([]binary, error) {
	dir := g.payload(architecture)
	goTool := func(args ...string) error { return goTool(architecture, args...) }
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := goTool("build", "-trimpath", "-o", filepath.Join(dir, "init"), "./test/kernels/guest"); err != nil {
		return nil, err
	}
	if g.host {
		if err := goTool("build", "-trimpath", "-o", filepath.Join(dir, "weir"), "./cmd/weir"); err != nil {
			return nil, err
		}
	}
	if g.command != "" {
		return []binary{{name: "command", dir: ".", path: "/bin/sh", args: []string{"-c", g.command}, command: true}}, nil
	}
	var tests []binary
	for _, p := range g.packages {
		b := binary{
			name: filepath.Base(p),
			dir:  p,
			path: filepath.Join(dir, filepath.Base(p)+".test"),
			args: []string{"-test.v", "-test.short=" + strconv.FormatBool(!g.whole), "-test.timeout=" + g.timeout.String()},
		}
		if err := goTool("test", "-c", "-trimpath", "-ldflags=-s -w", "-o", b.path, p); err != nil {
			return nil, err
		}
		tests = append(tests, b)
	}
	return tests, nil
}

// places are the host's paths of the test's directory, its binary and weir.
func (b binary) places(payload string) (places []string, err error) {
	for _, path := range []string{b.dir, b.path, filepath.Join(payload, "weir")} {
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		places = append(places, path)
	}
	return places, nil
}

func goTool(architecture string, args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// pack writes the initramfs: /init, /modules in load order, and per test a directory /tests/NAME
// with the binary, its arguments one to a line, and its testdata. A guest that sees the host's
// files has the paths of the directory, the binary and weir there, instead of the binary.
func (g guests) pack(path, version string, k kernel, tests []binary) (err error) {
	m := g.machine(version)
	order, err := loadOrder(k, m.modules)
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}()
	out := bufio.NewWriter(file)
	a := archive{w: out}

	for _, dir := range []string{"dev", "proc", "sys", "tmp", "run", "var", "modules", "tests", "host"} {
		a.directory(dir)
	}
	payload := g.payload(m.architecture)
	a.file("init", filepath.Join(payload, "init"))
	for i, o := range order {
		a.bytes(fmt.Sprintf("modules/%02d-%s.ko", i, o.name), o.data)
	}
	for i, t := range tests {
		dir := "tests/" + t.inGuest(i)
		a.directory(dir)
		a.bytes(dir+"/args", []byte(strings.Join(t.args, "\n")))
		if g.host {
			places, err := t.places(payload)
			if err != nil {
				return err
			}
			a.bytes(dir+"/host", []byte(strings.Join(places, "\n")))
			if g.systemd {
				a.bytes(dir+"/systemd", nil)
			}
			continue
		}
		a.file(dir+"/test", t.path)
		a.tree(dir+"/testdata", filepath.Join(t.dir, "testdata"))
		if err := a.programs(dir, t.dir); err != nil {
			return err
		}
	}
	a.close()
	if a.err != nil {
		return a.err
	}
	return out.Flush()
}

// archive writes the "newc" cpio format that the kernel unpacks
// (Documentation/driver-api/early-userspace/buffer-format.rst). Its first error
// ends it.
type archive struct {
	w     io.Writer
	inode int
	err   error
}

const (
	modeDirectory  = 0o040755
	modeExecutable = 0o100755
)

// programs writes the compiled BPF programs of a package, and of those below it, which tests load.
func (a *archive) programs(name, dir string) error {
	for _, pattern := range []string{"*_bpfel.o", "*/*_bpfel.o"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return fmt.Errorf("list BPF programs: %w", err)
		}
		for _, path := range paths {
			below, err := filepath.Rel(dir, path)
			if err != nil {
				return fmt.Errorf("place of a BPF program: %w", err)
			}
			if parent := filepath.Dir(below); parent != "." {
				a.directory(name + "/" + parent)
			}
			a.file(name+"/"+below, path)
		}
	}
	return nil
}

func (a *archive) directory(name string) { a.entry(name, modeDirectory, nil) }

func (a *archive) bytes(name string, data []byte) { a.entry(name, modeExecutable, data) }

func (a *archive) file(name, path string) {
	data, err := os.ReadFile(path)
	if err != nil && a.err == nil {
		a.err = err
	}
	a.bytes(name, data)
}

// tree copies a directory; a missing one counts as empty.
func (a *archive) tree(name, path string) {
	a.directory(name)
	entries, err := os.ReadDir(path)
	if err != nil && !os.IsNotExist(err) && a.err == nil {
		a.err = err
	}
	for _, e := range entries {
		if e.IsDir() {
			a.tree(name+"/"+e.Name(), filepath.Join(path, e.Name()))
			continue
		}
		a.file(name+"/"+e.Name(), filepath.Join(path, e.Name()))
	}
}

func (a *archive) close() { a.entry("TRAILER!!!", 0, nil) }

func (a *archive) entry(name string, mode int, data []byte) {
	if a.err != nil {
		return
	}
	a.inode++
	const links, noDevice = 1, 0
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, links, 0, len(data), noDevice, noDevice, noDevice, noDevice, len(name)+1, 0)
	head := pad4(header + name + "\x00")
	_, a.err = io.WriteString(a.w, head)
	if a.err == nil {
		_, a.err = a.w.Write(data)
	}
	if a.err == nil {
		_, a.err = a.w.Write(make([]byte, -len(data)&3))
	}
}

func pad4(s string) string { return s + strings.Repeat("\x00", -len(s)&3) }
