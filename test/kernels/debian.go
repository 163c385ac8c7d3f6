package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kernel is an unpacked Debian kernel package.
type kernel struct {
	root    string // where it was unpacked
	release string // as in uname -r

	emulator emulator // that boots it
}

func (k kernel) image() string { return filepath.Join(k.root, "boot", "vmlinuz-"+k.release) }

// tree is where its modules are: since Debian 13 below usr.
func (k kernel) tree() (string, error) {
	for _, lib := range []string{"lib", "usr/lib"} {
		tree := filepath.Join(k.root, lib, "modules", k.release)
		if _, err := os.Stat(tree); err == nil {
			return tree, nil
		}
	}
	return "", fmt.Errorf("there are no modules of kernel %s below %s", k.release, k.root)
}

// A flavor of Debian's kernels. The cloud one is a third of the usual size and has what a network of
// namespaces needs; only the usual one has 9p, by which a guest sees its host's files, and drivers of NICs.
const (
	cloud = "-cloud-amd64-unsigned"
	usual = "[0-9]-amd64-unsigned"
	arm   = "[0-9]-arm64-unsigned"
)

// debian is an apt that offers packages: this host's, or one by itself.
type debian struct {
	config string // its apt.conf; "": this host's
}

// command runs a program of apt, and returns what it prints.
func (d debian) command(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if d.config != "" {
		cmd.Env = append(os.Environ(), "APT_CONFIG="+d.config)
	}
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errors.String()))
	}
	return string(out), nil
}

// fetch finds the newest kernel of a version ("6.1") in dir, or downloads it with apt. It is only
// unpacked: nothing is installed on this machine.
func (d debian) fetch(dir, version, flavor string) (kernel, error) {
	k, found, err := unpacked(dir, version, flavor)
	if found || err != nil {
		return k, err
	}
	if err := d.download(dir, version, flavor); err != nil {
		return kernel{}, err
	}
	if k, found, err = unpacked(dir, version, flavor); err == nil && !found {
		err = fmt.Errorf("no vmlinuz in the kernel package below %s", dir)
	}
	return k, err
}

// unpacked finds the newest kernel of a version in dir.
func unpacked(dir, version, flavor string) (k kernel, found bool, err error) {
	images, err := filepath.Glob(filepath.Join(dir, "linux-image-"+version+".*"+flavor, "boot", "vmlinuz-*"))
	if err != nil || len(images) == 0 {
		return kernel{}, false, err
	}
	image := slices.MaxFunc(images, compareVersions)
	return kernel{
		root:    filepath.Dir(filepath.Dir(image)),
		release: strings.TrimPrefix(filepath.Base(image), "vmlinuz-"),
	}, true, nil
}

func (d debian) download(dir, version, flavor string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name, err := d.newest(version, flavor)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(dir, "unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	// apt downloads as its own user, which must be able to write here.
	if err := os.Chmod(work, 0o777); err != nil {
		return err
	}
	wanted := name
	if flavor == arm {
		wanted += ":arm64"
	}
	if _, err := d.command(work, "apt-get", "-qq", "download", wanted); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("download %s: got %d packages", name, len(debs))
	}
	root := filepath.Join(work, name)
	if out, err := exec.Command("dpkg-deb", "-x", debs[0], root).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack %s: %w: %s", name, err, out)
	}
	return os.Rename(root, filepath.Join(dir, name))
}

// newest asks apt for the newest kernel package of a version, and refreshes apt's
// lists when they do not know one.
func (d debian) newest(version, flavor string) (string, error) {
	pattern := "^linux-image-" + regexp.QuoteMeta(version) + `\..*` + flavor + "$"
	for range 2 {
		out, err := d.command("", "apt-cache", "search", "--names-only", pattern)
		if err != nil {
			return "", err
		}
		var names []string
		for line := range strings.Lines(out) {
			name, _, _ := strings.Cut(line, " ")
			names = append(names, name)
		}
		if len(names) > 0 {
			return slices.MaxFunc(names, compareVersions), nil
		}
		if _, err := d.command("", "apt-get", "-qq", "update"); err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("apt offers no package that matches %s", pattern)
}

var digits = regexp.MustCompile(`[0-9]+`)

// compareVersions orders names by the numbers in them.
func compareVersions(a, b string) int {
	return slices.CompareFunc(digits.FindAllString(a, -1), digits.FindAllString(b, -1),
		func(a, b string) int {
			x, _ := strconv.ParseUint(a, 10, 64)
			y, _ := strconv.ParseUint(b, 10, 64)
			return int(int64(x) - int64(y))
		})
}
