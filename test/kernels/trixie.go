package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// emulator is a qemu: this host's, or one that lies unpacked in a folder with all that it needs.
type emulator struct{ root string }

// command starts a program of it. One in a folder runs with the libraries there, and needs no chroot.
func (e emulator) command(program string) []string {
	if e.root == "" {
		return []string{program}
	}
	at := func(path string) string { return filepath.Join(e.root, path) }
	return []string{
		"env", "QEMU_MODULE_DIR=" + at("usr/lib/x86_64-linux-gnu/qemu"),
		at("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"), "--library-path", at("usr/lib/x86_64-linux-gnu"),
		at("usr/bin/" + program), "-L", at("usr/share/qemu"), "-L", at("usr/share/seabios"),
	}
}

// aptConfig makes an apt by itself, which knows nothing of this host's packages, and so downloads all that
// a package needs. It has Debian 13's, for the guests' architectures, from the mirror that this host uses.
const aptConfig = `Dir::Etc::sourcelist "%[1]s/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::lists "%[1]s/lists";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
APT::Architecture "amd64";
APT::Architectures { "amd64"; "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
`

// What a host needs for it, besides apt. Debian 12 has the keys of Debian 13 since its version 12.1.
const trixieKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"

// trixie makes an apt with Debian 13's packages, in a folder.
func trixie(dir string) (debian, error) {
	if runtime.GOARCH != "amd64" {
		return debian{}, fmt.Errorf("qemu for machines with network cards is fetched for amd64 alone, and this host is %s", runtime.GOARCH)
	}
	for _, program := range []string{"apt-get", "dpkg-deb", "xz"} {
		if _, err := exec.LookPath(program); err != nil {
			return debian{}, fmt.Errorf("there is no %s, by which Debian 13's qemu and kernels are fetched: %w", program, err)
		}
	}
	if _, err := os.Stat(trixieKeys); err != nil {
		return debian{}, fmt.Errorf("the package debian-archive-keyring, by which Debian 13's packages are verified, is missing: %w", err)
	}
	dir, err := filepath.Abs(filepath.Join(dir, "apt"))
	if err != nil {
		return debian{}, err
	}
	mirror, err := mirror()
	if err != nil {
		return debian{}, err
	}
	for _, name := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return debian{}, err
		}
	}
	d := debian{config: filepath.Join(dir, "apt.conf")}
	for name, text := range map[string]string{
		"apt.conf":     fmt.Sprintf(aptConfig, dir),
		"sources.list": fmt.Sprintf("deb [signed-by=%s] %s trixie main\n", trixieKeys, mirror),
		"status":       "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return debian{}, err
		}
	}
	return d, nil
}

// mirror is where this host's apt has Debian from. It knows that of a source only when it has its lists.
func mirror() (string, error) {
	for range 2 {
		out, err := debian{}.command("", "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian", "Label: Debian")
		if err != nil {
			return "", err
		}
		if uri, _, _ := strings.Cut(out, "\n"); uri != "" {
			return uri, nil
		}
		if _, err := (debian{}).command("", "apt-get", "-qq", "update"); err != nil {
			return "", err
		}
	}
	return "", errors.New("this host's apt has no mirror of Debian, and Debian 13's qemu and kernels come from one")
}

// unpackedQEMU finds qemu in a folder.
func unpackedQEMU(dir string) (e emulator, found bool, err error) {
	root, err := filepath.Abs(filepath.Join(dir, "qemu"))
	if err != nil {
		return emulator{}, false, err
	}
	_, err = os.Stat(root)
	if errors.Is(err, os.ErrNotExist) {
		return emulator{root}, false, nil
	}
	return emulator{root}, err == nil, err
}

// fetchQEMU finds qemu in a folder, or downloads and unpacks it there. Nothing is installed on this machine.
func (d debian) fetchQEMU(dir string) (emulator, error) {
	qemu, found, err := unpackedQEMU(dir)
	if found || err != nil {
		return qemu, err
	}
	if _, err := d.command("", "apt-get", "-qq", "update"); err != nil {
		return emulator{}, err
	}
	if _, err := d.command("", "apt-get", "-qq", "--yes", "--download-only", "install", "qemu-system-arm", "qemu-system-x86"); err != nil {
		return emulator{}, err
	}
	archives := filepath.Join(filepath.Dir(d.config), "cache", "archives")
	debs, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil || len(debs) == 0 {
		return emulator{}, fmt.Errorf("apt has downloaded no packages into %s", archives)
	}
	work, err := os.MkdirTemp(dir, "unpack-")
	if err != nil {
		return emulator{}, err
	}
	defer os.RemoveAll(work)
	for _, deb := range debs {
		if out, err := exec.Command("dpkg-deb", "-x", deb, work).CombinedOutput(); err != nil {
			return emulator{}, fmt.Errorf("unpack %s: %w: %s", deb, err, out)
		}
	}
	if err := os.RemoveAll(archives); err != nil {
		return emulator{}, err
	}
	return qemu, os.Rename(work, qemu.root)
}
