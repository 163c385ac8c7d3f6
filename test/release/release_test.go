// Package release tries what a version is released as. Two builds of it take minutes, and so does the
// rest of make test-release; the tests that go without them are part of make test.
package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/config"
)

var update = flag.Bool("update", false, "write the lists of what is installed to testdata, to be looked at")

// root is the repository's.
const root = "../.."

func command(t *testing.T, dir string, environment []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), environment...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String()
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The file VERSION has a section in CHANGELOG.md, of which release notes are made.
func TestChangelogHasVersion(t *testing.T) {
	version := strings.TrimSpace(read(t, root+"/VERSION"))
	changelog := read(t, root+"/CHANGELOG.md")
	if !strings.Contains(changelog, "\n## "+version+"\n") && !strings.Contains(changelog, "\n## "+version+" ") {
		t.Errorf("CHANGELOG.md has no section ## %s", version)
	}
}

// Sources without git say the version and the commit that they are of; a tag is the version; and a
// version that is none is refused.
func TestVersionOfSources(t *testing.T) {
	dir := t.TempDir()
	command(t, root, nil, "sh", "-c", `git archive HEAD | tar -x -C "$1"`, "sh", dir)
	head := strings.TrimSpace(command(t, root, nil, "git", "log", "-1", "--format=%H %ct"))
	version := strings.TrimSpace(read(t, filepath.Join(dir, "VERSION")))
	said := func() string { return strings.TrimSpace(command(t, dir, nil, ".ci/version")) }
	if got, want := said(), version+" "+head; got != want {
		t.Errorf("sources without git are %q, not %q", got, want)
	}
	git := func(args ...string) {
		command(t, dir, nil, "git", append([]string{"-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main"}, args...)...)
	}
	git("init", "--quiet")
	git("add", "--all")
	git("commit", "--quiet", "--message", "begin")
	commit := strings.TrimSpace(command(t, dir, nil, "git", "log", "-1", "--format=%H %ct"))
	if got, want := said(), version+" "+commit; got != want {
		t.Errorf("a commit without a tag is %q, not %q", got, want)
	}
	git("tag", "v7.8.9-rc.1")
	if got, want := said(), "7.8.9-rc.1 "+commit; got != want {
		t.Errorf("a commit with a tag is %q, not %q", got, want)
	}
	changed := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("1.2\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := said(); !strings.HasSuffix(strings.Fields(got)[1], "-changed") {
			t.Errorf("with another %s it is %q", name, got)
		}
	}
	changed("cmd/weir/uncommitted.go")
	if err := os.Remove(filepath.Join(dir, "cmd/weir/uncommitted.go")); err != nil {
		t.Fatal(err)
	}
	changed("VERSION")
	git("tag", "--delete", "v7.8.9-rc.1")
	if out, err := exec.Command(filepath.Join(dir, ".ci/version")).CombinedOutput(); err == nil || !strings.Contains(string(out), "1.2 is not MAJOR.MINOR.PATCH") {
		t.Errorf("version 1.2 is taken: %v %s", err, out)
	}
}

// An upgrade is tried from the last release, and where there is none, make says what to name instead.
func TestUpgradeIsFromTheLastRelease(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "clone")
	source, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	command(t, "", nil, "git", "clone", "--quiet", "--no-tags", source, dir)
	would := func(arguments ...string) string {
		cmd := exec.Command("make", append([]string{"--dry-run", "test-upgrade"}, arguments...)...)
		cmd.Dir = dir
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if got := would(); !strings.Contains(got, "FROM=COMMIT") || strings.Contains(got, "TestUpgrade") {
		t.Errorf("without a release it is\n%s", got)
	}
	for _, tag := range []string{"v7.8.7", "v7.8.8"} {
		command(t, dir, nil, "git", "tag", tag)
		command(t, dir, nil, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "--allow-empty", "--message", "after "+tag)
	}
	for name, want := range map[string]string{"": "v7.8.8", "FROM=abc": "abc"} {
		if got := would(strings.Fields(name)...); !strings.Contains(got, "WEIR_UPGRADE_FROM="+want+" ") {
			t.Errorf("with %q it is not from %s:\n%s", name, want, got)
		}
	}
}

// The example that packages bring is a file that weir takes.
func TestExample(t *testing.T) {
	path := root + "/contrib/weir.yaml.example"
	c, err := config.Parse(path, []byte(read(t, path)))
	if err != nil || len(c.Services) != 1 || len(c.Director.Interfaces) == 0 || len(c.Agent.Interfaces) == 0 {
		t.Errorf("the example is read as %+v, %v", c, err)
	}
}

// The BPF objects in the binaries are for little-endian machines, so others are told to the builder.
func TestBigEndianIsRefused(t *testing.T) {
	for architecture, refused := range map[string]bool{"s390x": true, "ppc64": true, "mips64": true, "amd64": false, "arm64": false, "riscv64": false} {
		cmd := exec.Command("go", "list", "-e", "-f", "{{.GoFiles}}", "./internal/bpfload")
		cmd.Dir, cmd.Env = root, append(os.Environ(), "GOOS=linux", "GOARCH="+architecture)
		out, err := cmd.Output()
		if err != nil || strings.Contains(string(out), "bigendian.go") != refused {
			t.Errorf("for %s %s is compiled, %v", architecture, out, err)
		}
	}
}

// What make install installs is listed in testdata, and gone after make uninstall, with what the
// operator has written left.
func TestInstall(t *testing.T) {
	weir := os.Getenv("WEIR_BINARY")
	if weir == "" {
		weir = filepath.Join(t.TempDir(), "weir")
		command(t, root, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-buildvcs=false", "-o", weir, "./cmd/weir")
	}
	for _, prefix := range []string{"usr", "/", "/opt/a b", "/opt/a&b", "/opt/../etc"} { // it becomes part of units
		cmd := exec.Command(".ci/install", weir, weir, prefix, t.TempDir())
		if cmd.Dir = root; cmd.Run() == nil {
			t.Errorf("PREFIX=%s is taken", prefix)
		}
	}
	for _, prefix := range []string{"/usr/local", "/opt/weir"} {
		to := t.TempDir()
		command(t, root, nil, ".ci/install", weir, weir, prefix, to)
		for path, part := range map[string]string{
			"/lib/systemd/system/weir.service":           "ExecStart=" + prefix + "/bin/weir run ",
			"/lib/systemd/system/weir-agent.service":     "ExecStart=" + prefix + "/bin/weir agent ",
			"/share/man/man1/weir-run.1":                 ".SH SYNOPSIS",
			"/share/man/man5/weir.yaml.5":                "tunnel-source",
			"/share/bash-completion/completions/weir":    "__complete",
			"/share/zsh/site-functions/_weir":            "#compdef weir",
			"/share/fish/vendor_completions.d/weir.fish": "complete -c weir",
		} {
			if !strings.Contains(strings.ReplaceAll(read(t, to+prefix+path), `\-`, "-"), part) {
				t.Errorf("%s%s does not have %q", prefix, path, part)
			}
		}
		list := command(t, to, nil, "sh", "-c", `find . ! -type d -printf '%M %P\n' | LC_ALL=C sort -k 2`)
		golden(t, "install.txt", strings.ReplaceAll(list, prefix[1:]+"/", "PREFIX/"))
		kept := to + "/etc/weir/weir.yaml"
		if err := os.WriteFile(kept, []byte("services: []\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(to + prefix + "/share/doc"); err != nil { // somebody has been there before
			t.Fatal(err)
		}
		command(t, root, nil, ".ci/install", "--remove", prefix, to)
		if left := files(t, to); len(left) != 1 || left[0] != "etc/weir/weir.yaml" {
			t.Errorf("after uninstall are left: %q", left)
		}
	}
}

func files(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			relative, _ := filepath.Rel(dir, path)
			paths = append(paths, relative)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// release is one in a directory.
type release struct {
	dir     string
	version string
}

func (r release) path(format string) string {
	return filepath.Join(r.dir, strings.ReplaceAll(format, "VERSION", r.version))
}

// The release of HEAD is the same, byte for byte, of clones in two folders, one after the other, in
// other time zones, without what has been compiled for the first one, and with what is in no commit. What
// is in it works.
func TestRelease(t *testing.T) {
	if os.Getenv("WEIR_RELEASE_TOOLS") == "" {
		t.Skip("make test-release runs it")
	}
	key := newKey(t)
	source := tagged(t, read(t, key+".pub"))
	build := func(folder, change string, environment ...string) release {
		clone := filepath.Join(t.TempDir(), folder)
		command(t, "", nil, "git", "clone", "--quiet", "--no-local", source, clone)
		command(t, clone, nil, "sh", "-c", change)
		command(t, clone, append(environment, "SIGN_KEY="+key), ".ci/release", os.Getenv("WEIR_RELEASE_TOOLS"), os.Getenv("WEIR_HELM"), "dist")
		return release{filepath.Join(clone, "dist"), strings.TrimSpace(read(t, filepath.Join(clone, "VERSION")))}
	}
	first := build("first", "true", "TZ=Asia/Tokyo")
	second := build("another-folder/of-the-second", `echo 'package main; func init() { println("more") }' >cmd/weir/uncommitted.go
		echo '// more' | tee -a go.mod >>kube/go.mod
		echo more | tee -a contrib/package/postinst CHANGELOG.md LICENSE kube/chart/Chart.yaml >>contrib/systemd/weir.service
		echo false >>.ci/artifacts`, "TZ=America/New_York", "GOCACHE="+t.TempDir())
	names := files(t, first.dir)
	if other := files(t, second.dir); !slices.Equal(names, other) {
		t.Fatalf("one release has %q, the other one %q", names, other)
	}
	for _, name := range names {
		if read(t, filepath.Join(first.dir, name)) != read(t, filepath.Join(second.dir, name)) {
			t.Errorf("%s is not the same in both", name)
		}
	}
	t.Run("sums", func(t *testing.T) { checkSums(t, first, key) })
	t.Run("sources", func(t *testing.T) { checkSources(t, first) })
	t.Run("binaries", func(t *testing.T) { checkBinaries(t, first) })
	t.Run("packages", func(t *testing.T) { checkPackages(t, first) })
	t.Run("removal", func(t *testing.T) { checkRemoval(t, first) })
	t.Run("images", func(t *testing.T) { checkImages(t, first) })
	t.Run("chart", func(t *testing.T) { checkChart(t, first) })
}

// What is signed is a commit with a tag, a dated section of CHANGELOG.md, and a key that users know; and
// nothing is left unsigned by mistake.
func TestReleaseIsRefused(t *testing.T) {
	if os.Getenv("WEIR_RELEASE_TOOLS") == "" {
		t.Skip("make test-release runs it")
	}
	key := newKey(t)
	source := tagged(t, read(t, key+".pub"))
	signed := []string{"SIGN_KEY=" + key}
	for _, c := range []struct {
		says        string
		environment []string
		spoil       string // what makes the clone of a release one that is refused
	}{
		{"SIGN_KEY names no key: UNSIGNED=1", nil, "true"},
		{"has no tag v", signed, "git tag --delete v*"},
		{"the tag says 99.0.0", signed, "git tag --delete v* && git tag v99.0.0"},
		{"in CHANGELOG.md has no date", signed, "sed -i 's/ (....-..-..)$/ (not released yet)/' CHANGELOG.md && git commit --quiet --all -m more && git tag --force v*"},
		{"does not have the public key of " + key, signed, "echo >contrib/allowed_signers && git commit --quiet --all -m more && git tag --force v*"},
		{"it is not known of which commit", []string{"UNSIGNED=1"}, "rm -r .git"},
	} {
		dir := filepath.Join(t.TempDir(), "clone")
		command(t, "", nil, "git", "clone", "--quiet", source, dir)
		spoil := strings.ReplaceAll(c.spoil, "v*", "v"+strings.TrimSpace(read(t, filepath.Join(dir, "VERSION"))))
		command(t, dir, []string{"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@localhost", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@localhost"}, "sh", "-c", spoil)
		cmd := exec.Command(".ci/release", "no-tools", "no-helm", filepath.Join(t.TempDir(), "dist"))
		cmd.Dir, cmd.Env = dir, append(os.Environ(), c.environment...)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), c.says) {
			t.Errorf("after %q, with %q, a release says (%v), and not %q:\n%s", spoil, c.environment, err, c.says, out)
		}
	}
}

// newKey is the file of a key that signs.
func newKey(t *testing.T) (path string) {
	path = filepath.Join(t.TempDir(), "key")
	command(t, "", nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path)
	return path
}

// tagged is a clone of HEAD as it is when it is released: with a date in CHANGELOG.md, the key of who
// signs, and a tag.
func tagged(t *testing.T, key string) (dir string) {
	source, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "source")
	command(t, "", nil, "git", "clone", "--quiet", "--no-local", source, dir)
	changes := filepath.Join(dir, "CHANGELOG.md")
	if text := read(t, changes); strings.Contains(text, "(not released yet)") {
		if err := os.WriteFile(changes, []byte(strings.Replace(text, "(not released yet)", "(2026-01-01)", 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "contrib/allowed_signers"), []byte("weir namespaces=\"weir-release\" "+key), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, dir, nil, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "--all", "-m", "a release")
	command(t, dir, nil, "git", "tag", "v"+strings.TrimSpace(read(t, filepath.Join(dir, "VERSION"))))
	return dir
}

// checkSums verifies the release as docs/operate/install.md says.
func checkSums(t *testing.T, r release, key string) {
	signers := filepath.Join(t.TempDir(), "signers")
	if err := os.WriteFile(signers, []byte("weir "+read(t, key+".pub")), 0o600); err != nil {
		t.Fatal(err)
	}
	page := read(t, filepath.Join(root, "docs/operate/install.md"))
	_, verify, found := strings.Cut(page, "```sh\nssh-keygen ")
	verify, _, ended := strings.Cut(verify, "\n```")
	if !found || !ended || strings.Contains(verify, "\n") {
		t.Fatal("docs/operate/install.md has no single command by which a release is verified")
	}
	verify = "ssh-keygen " + strings.Replace(verify, "-f signers", `-f "$1"`, 1)
	command(t, r.dir, nil, "sh", "-c", verify, "sh", signers)
	for name, spoil := range map[string]func(file string, text []byte) error{
		"weir-" + r.version + "-linux-amd64": func(file string, text []byte) error { return os.WriteFile(file, append(text, 0), 0o644) },
		"SHA256SUMS":                         func(file string, text []byte) error { return os.WriteFile(file, append(text, "# more\n"...), 0o644) },
		"SHA256SUMS.sig":                     func(file string, _ []byte) error { return os.Remove(file) },
	} {
		file := r.path(name)
		text := []byte(read(t, file))
		if err := spoil(file, text); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", verify, "sh", signers)
		cmd.Dir = r.dir
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("with another %s the release is right:\n%s", name, out)
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sums := read(t, r.path("SHA256SUMS"))
	for _, name := range files(t, r.dir) {
		if !strings.HasPrefix(name, "SHA256SUMS") && !strings.Contains(sums, "  "+name+"\n") {
			t.Errorf("SHA256SUMS does not have %s", name)
		}
	}
}

// checkSources builds the binary from the archive of the sources, which has no git.
func checkSources(t *testing.T, r release) {
	dir := t.TempDir()
	command(t, dir, nil, "tar", "-xzf", r.path("weir-VERSION.src.tar.gz"))
	dir = filepath.Join(dir, "weir-"+r.version)
	command(t, dir, nil, "make", "build")
	architecture := strings.TrimSpace(command(t, dir, nil, "go", "env", "GOARCH"))
	if read(t, dir+"/bin/weir") != read(t, r.path("weir-VERSION-linux-"+architecture)) {
		t.Error("make build of the sources makes another binary than the release has")
	}
}

// checkBinaries runs them, those for arm64 emulated.
func checkBinaries(t *testing.T, r release) {
	programs := map[string]string{}
	for architecture, emulator := range map[string]string{"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"} {
		weir := r.path("weir-VERSION-linux-" + architecture)
		var about struct {
			Version, Platform string
			Programs          map[string]string
		}
		if err := json.Unmarshal([]byte(command(t, "", nil, emulator, weir, "version", "-o", "json")), &about); err != nil {
			t.Fatal(err)
		}
		if about.Version != r.version || about.Platform != "linux/"+architecture {
			t.Errorf("weir for %s says %+v", architecture, about)
		}
		programs[architecture] = fmt.Sprint(about.Programs)
		if help := command(t, "", nil, emulator, weir, "run", "--help"); !strings.Contains(help, "--config") {
			t.Errorf("weir run --help for %s prints %s", architecture, help)
		}
		example, err := filepath.Abs(root + "/contrib/weir.yaml.example")
		if err != nil {
			t.Fatal(err)
		}
		if out := command(t, "", nil, emulator, weir, "check", example); !strings.Contains(out, ": ok") {
			t.Errorf("weir check for %s prints %s", architecture, out)
		}
		if out := command(t, "", nil, emulator, r.path("weir-kube-VERSION-linux-"+architecture), "--version"); !strings.Contains(out, r.version) {
			t.Errorf("weir-kube --version for %s prints %s", architecture, out)
		}
		for _, program := range []string{"weir", "weir-kube"} {
			if kind := command(t, "", nil, "file", "--brief", r.path(program+"-VERSION-linux-"+architecture)); !strings.Contains(kind, "statically linked") {
				t.Errorf("%s for %s is %s", program, architecture, kind)
			}
			var bill struct {
				Metadata struct {
					Component struct{ Name, Version string }
				}
				Components []struct{ Purl string }
			}
			if err := json.Unmarshal([]byte(read(t, r.path(program+"-VERSION-linux-"+architecture+".cdx.json"))), &bill); err != nil {
				t.Fatal(err)
			}
			has := slices.ContainsFunc(bill.Components, func(c struct{ Purl string }) bool {
				return strings.HasPrefix(c.Purl, "pkg:golang/github.com/spf13/cobra@v")
			})
			if !has || bill.Metadata.Component.Version != "v"+r.version {
				t.Errorf("the bill of materials of %s for %s is of %+v, and has cobra: %v", program, architecture, bill.Metadata, has)
			}
		}
	}
	if programs["amd64"] != programs["arm64"] {
		t.Errorf("the BPF programs differ: %v", programs)
	}
}

// checkPackages compares what packages install with testdata, has lintian look, and reads every page
// of the manual.
func checkPackages(t *testing.T, r release) {
	for _, architecture := range [][2]string{{"amd64", "x86_64"}, {"arm64", "aarch64"}} {
		deb, rpm := r.path("weir_VERSION-1_"+architecture[0]+".deb"), r.path("weir-VERSION-1."+architecture[1]+".rpm")
		list := command(t, "", nil, "sh", "-c", `dpkg-deb --fsys-tarfile "$1" | tar -t -v --numeric-owner | awk '{print $1, $2, $6}'`, "sh", deb)
		golden(t, "deb.txt", list+"conffiles: "+command(t, "", nil, "dpkg-deb", "--info", deb, "conffiles"))
		golden(t, "rpm.txt", command(t, "", nil, "rpm", "--query", "--package", rpm, "--queryformat", `[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES}\n]`)+
			"configuration: "+command(t, "", nil, "rpm", "--query", "--package", "--configfiles", rpm))
		command(t, "", nil, "lintian", "--allow-root", "--fail-on", "error,warning", deb)
		control := t.TempDir()
		command(t, "", nil, "dpkg-deb", "--control", deb, control)
		for script, tag := range map[string]string{"postinst": "POSTIN", "prerm": "PREUN", "postrm": "POSTUN", "preinst": "PREIN"} {
			want, err := os.ReadFile(root + "/contrib/package/" + script)
			if errors.Is(err, os.ErrNotExist) {
				want = []byte("(none)") // so RPM says it
				if _, err := os.Lstat(filepath.Join(control, script)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s has a %s, and contrib/package has none (%v)", deb, script, err)
				}
			} else if err != nil || read(t, filepath.Join(control, script)) != string(want) {
				t.Errorf("%s of %s is not that of contrib/package (%v)", script, deb, err)
			}
			if got := command(t, "", nil, "rpm", "--query", "--package", rpm, "--queryformat", "%{"+tag+"}"); strings.TrimSpace(got) != strings.TrimSpace(string(want)) {
				t.Errorf("%s of %s is not that of contrib/package:\n%s", script, rpm, got)
			}
		}
		for _, who := range []string{command(t, "", nil, "dpkg-deb", "--field", deb, "Maintainer"), command(t, "", nil, "rpm", "--query", "--package", rpm, "--queryformat", "%{PACKAGER}")} {
			if !strings.HasSuffix(strings.TrimSpace(who), ".invalid>") {
				t.Errorf("a package sends mail to %q, which is no mailbox that the maintainers have", who)
			}
		}
		unpacked := t.TempDir()
		command(t, "", nil, "dpkg-deb", "--extract", deb, unpacked)
		if read(t, unpacked+"/usr/bin/weir") != read(t, r.path("weir-VERSION-linux-"+architecture[0])) {
			t.Errorf("%s has another binary", deb)
		}
		pages, err := filepath.Glob(unpacked + "/usr/share/man/man?/*.gz")
		if err != nil || len(pages) < 20 {
			t.Fatalf("there are %d pages, %v", len(pages), err)
		}
		out, err := exec.Command("man", append([]string{"--warnings", "--encoding=utf8", "--local-file"}, pages...)...).CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("warning:")) || bytes.Contains(out, []byte("Auto generated")) {
			t.Errorf("man: %v\n%s", err, out)
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := read(t, path); got != want {
		t.Errorf("there are other files than %s has (look, then -update):\n%s", path, cmp.Diff(want, got))
	}
}

// checkImages reads the archives: an index of an image for each architecture, whose one program is
// that of the release.
func checkImages(t *testing.T, r release) {
	for _, program := range []string{"weir", "weir-kube"} {
		content := unpack(t, []byte(read(t, r.path(program+"-VERSION.oci.tar"))))
		var top, list ociIndex
		content.json(t, "index.json", &top)
		if len(top.Manifests) != 1 {
			t.Fatalf("%s: the archive has %d images", program, len(top.Manifests))
		}
		content.json(t, top.Manifests[0].blob(), &list)
		var architectures []string
		for _, m := range list.Manifests {
			architectures = append(architectures, m.Platform.OS+"/"+m.Platform.Architecture)
			var manifest struct {
				Config descriptor
				Layers []descriptor
			}
			content.json(t, m.blob(), &manifest)
			var image struct {
				Architecture string
				Config       struct{ Labels map[string]string }
			}
			content.json(t, manifest.Config.blob(), &image)
			labels := image.Config.Labels
			if image.Architecture != m.Platform.Architecture || labels["org.opencontainers.image.version"] != r.version || len(labels["org.opencontainers.image.revision"]) != 40 || labels["org.opencontainers.image.licenses"] == "" {
				t.Errorf("%s for %s is labeled %v", program, m.Platform.Architecture, labels)
			}
			has := map[string][]byte{}
			for _, layer := range manifest.Layers {
				for name, file := range unpack(t, content[layer.blob()]) {
					has[name] = file
				}
			}
			if len(has["licenses/licenses.txt"]) == 0 || len(has["licenses/LICENSE"]) == 0 || len(has["licenses/GPL-2.0-only.txt"]) == 0 {
				t.Errorf("%s for %s lacks licenses of what is in it", program, m.Platform.Architecture)
			}
			if len(has) != 5 || string(has[program]) != read(t, r.path(program+"-VERSION-linux-"+image.Architecture)) {
				t.Errorf("%s for %s has %d files, or another program", program, image.Architecture, len(has))
			}
		}
		if slices.Sort(architectures); !slices.Equal(architectures, []string{"linux/amd64", "linux/arm64"}) {
			t.Errorf("%s is for %q", program, architectures)
		}
	}
}

type descriptor struct {
	Digest   string
	Platform struct{ OS, Architecture string }
}

func (d descriptor) blob() string { return "blobs/" + strings.ReplaceAll(d.Digest, ":", "/") }

type ociIndex struct{ Manifests []descriptor }

// archived is the files of an archive, by their names.
type archived map[string][]byte

func (a archived) json(t *testing.T, name string, into any) {
	t.Helper()
	if err := json.Unmarshal(a[name], into); err != nil {
		t.Fatalf("read %s of the archive: %v", name, err)
	}
}

func unpack(t *testing.T, data []byte) archived {
	t.Helper()
	var reader io.Reader = bytes.NewReader(data)
	if compressed, err := gzip.NewReader(bytes.NewReader(data)); err == nil {
		reader = compressed
	}
	found := archived{}
	for r := tar.NewReader(reader); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err == nil && header.Typeflag == tar.TypeReg {
			found[strings.TrimPrefix(header.Name, "./")], err = io.ReadAll(r)
		}
		if err != nil {
			t.Fatal("read an archive:", err)
		}
	}
}

// checkChart has helm look at the chart, whose images are those of the release.
func checkChart(t *testing.T, r release) {
	helm, chart := os.Getenv("WEIR_HELM"), r.path("weir-kube-chart-VERSION.tgz")
	environment := []string{"HOME=" + t.TempDir()}
	set := []string{"--set", "image.repository=registry.example.org/weir-kube"}
	command(t, "", environment, helm, append([]string{"lint", "--strict", "--quiet", chart}, set...)...)
	about := command(t, "", environment, helm, "show", "chart", chart)
	for _, line := range []string{"version: " + r.version, "appVersion: " + r.version} {
		if !slices.Contains(strings.Split(about, "\n"), line) {
			t.Errorf("the chart does not say %s:\n%s", line, about)
		}
	}
	rendered := command(t, "", environment, helm, append([]string{"template", "weir-kube", chart, "--kube-version", "1.33.0"}, set...)...)
	if image := "registry.example.org/weir-kube:" + r.version; !strings.Contains(rendered, image) {
		t.Errorf("the chart does not run %s", image)
	}
}
