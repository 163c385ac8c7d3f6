// Command guest is the init of the machines that test/kernels boots: it mounts what the tests
// expect, loads the modules in the order of their names, runs every test binary, reports on the
// second serial port how each ended, and powers off.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mounts are file systems in order of mounting: type and place.
var mounts = [][2]string{
	{"devtmpfs", "/dev"},
	{"proc", "/proc"},
	{"sysfs", "/sys"},
	{"bpf", "/sys/fs/bpf"},
	{"cgroup2", "/sys/fs/cgroup"},
	{"tmpfs", "/tmp"},
	{"tmpfs", "/run"},
	{"tmpfs", "/var"},
}

func main() {
	if len(os.Args) == 2 {
		fmt.Fprintln(os.Stderr, "guest:", contain(os.Args[1]))
		os.Exit(1)
	}
	if err := run(); err != nil {
		// This is the kernel's console: the second port may be missing.
		fmt.Fprintln(os.Stderr, "guest:", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "guest: power off:", err)
	}
}

func run() error {
	for _, m := range mounts {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	port, err := os.OpenFile(os.Getenv("PORT"), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	if err := writeRegisters(os.Getenv("REGISTERS")); err != nil {
		return err
	}
	if err := loadModules("/modules"); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	tests, err := filepath.Glob("/tests/*")
	if err != nil || len(tests) == 0 {
		return errors.Join(err, errors.New("there are no tests"))
	}
	if _, err := os.Stat("/tests/" + filepath.Base(tests[0]) + "/host"); err == nil {
		if err := mountHost(); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(tests[0], "systemd")); err == nil {
		return becomeSystemd(tests[0])
	}
	for _, dir := range tests {
		fmt.Fprintf(port, "guest: exit %s %d\n", filepath.Base(dir), runTest(dir, port))
	}
	fmt.Fprintln(port, "guest: done")
	return nil
}

// writeRegisters writes words of the machine's memory: ADDRESS=VALUE, with commas between them.
func writeRegisters(list string) error {
	if list == "" {
		return nil
	}
	memory, err := os.OpenFile("/dev/mem", os.O_RDWR|unix.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	for register := range strings.SplitSeq(list, ",") {
		var address, value uint64
		if _, err := fmt.Sscanf(register, "0x%x=0x%x", &address, &value); err != nil {
			return fmt.Errorf("register %q: %w", register, err)
		}
		size := uint64(os.Getpagesize())
		page, err := unix.Mmap(int(memory.Fd()), int64(address/size*size), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("register %q: %w", register, err)
		}
		*(*uint32)(unsafe.Pointer(&page[address%size])) = uint32(value)
		if err := unix.Munmap(page); err != nil {
			return fmt.Errorf("register %q: %w", register, err)
		}
	}
	return nil
}

func loadModules(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	if err != nil {
		return err
	}
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(file.Fd()), "", 0)
		file.Close()
		if err != nil {
			return fmt.Errorf("load %s: %w", path, err)
		}
	}
	return nil
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// hostRoot has the host's files; writes are kept in memory.
var hostRoot = "/host"

// mountHost makes the host's root, which qemu offers read-only over 9p, writable, with this
// machine's own kernel file systems in it.
func mountHost() error {
	for _, dir := range []string{"/run/host", "/run/upper", "/run/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("host", "/run/host", "9p", unix.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=524288,cache=loose"); err != nil {
		return fmt.Errorf("mount the host's files: %w", err)
	}
	if err := unix.Mount("overlay", hostRoot, "overlay", 0, "lowerdir=/run/host,upperdir=/run/upper,workdir=/run/work"); err != nil {
		return fmt.Errorf("mount what is written over the host's files: %w", err)
	}
	for _, m := range mounts {
		if m[1] == "/var" || m[1] == "/tmp" {
			continue // keep the host's: programs have their data there, and a checkout may be there
		}
		if err := unix.Mount(m[0], hostRoot+m[1], m[0], 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", hostRoot+m[1], err)
		}
	}
	return nil
}

// command is how a test runs: from the initramfs, or from the host's files, in its package's
// directory and with the path of weir.
func command(dir string, args []string) (*exec.Cmd, error) {
	places, err := os.ReadFile(filepath.Join(dir, "host"))
	if errors.Is(err, os.ErrNotExist) {
		test := exec.Command("./test", args...)
		test.Dir = dir
		test.Env = []string{"PATH=/bin", "HOME=/tmp", "TMPDIR=/tmp", "WEIR_NICS=" + os.Getenv("NICS")}
		return test, nil
	}
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(places), "\n")
	if len(lines) != 3 {
		return nil, fmt.Errorf("%s/host has %d lines", dir, len(lines))
	}
	test := exec.Command(lines[1], args...)
	test.Dir = lines[0]
	test.SysProcAttr = &syscall.SysProcAttr{Chroot: hostRoot}
	test.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TMPDIR=/tmp",
		"WEIR_BINARY=" + lines[2], "WEIR_DEVICES=all"}
	return test, nil
}

// unit runs the tests as a service of systemd, and says how they ended. The machine ends with them, if
// they have not ended it: so they are stopped as what the network is for others, after those.
const unit = `[Unit]
Description=the tests
Wants=network.target
Before=network.target
[Service]
WorkingDirectory=%s
Environment=%s
ExecStart=%s
ExecStopPost=/bin/sh -c 'echo "guest: exit %s $${EXIT_STATUS:--1}"; echo "guest: done"; systemctl --no-block poweroff'
StandardOutput=file:/dev/ttyS1
StandardError=inherit
KillMode=mixed
KillSignal=SIGUSR1
TimeoutStopSec=infinity
`

// masked are units of the host that this machine does without: each takes seconds in an emulator.
var masked = []string{
	"systemd-binfmt.service", "systemd-firstboot.service", "systemd-journal-flush.service", "systemd-machine-id-commit.service",
	"systemd-modules-load.service", "systemd-pcrphase.service", "systemd-pcrphase-sysinit.service", "systemd-pstore.service", "systemd-random-seed.service",
	"systemd-repart.service", "systemd-timesyncd.service", "systemd-tmpfiles-setup.service", "systemd-tmpfiles-setup-dev.service", "systemd-update-utmp.service",
	"kmod-static-nodes.service", "proc-sys-fs-binfmt_misc.automount", "dev-hugepages.mount", "dev-mqueue.mount",
	"sys-fs-fuse-connections.mount", "sys-kernel-config.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount",
	"timers.target", "paths.target", "cryptsetup.target", "integritysetup.target", "veritysetup.target", "dbus.socket", "dbus.service",
}

// becomeSystemd goes on as systemd on the host's files, with the tests as the only service that is wanted.
// It returns only errors.
func becomeSystemd(dir string, environment ...string) error {
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	if err != nil {
		return err
	}
	test, err := command(dir, strings.Split(string(args), "\n"))
	if err != nil {
		return err
	}
	units := filepath.Join(hostRoot, "run", "systemd", "system")
	if err := os.MkdirAll(units, 0o755); err != nil {
		return err
	}
	for _, name := range masked {
		if err := os.Symlink("/dev/null", filepath.Join(units, name)); err != nil {
			return err
		}
	}
	// By these systemd would take the machine for a container, because the host is one.
	for _, name := range []string{".dockerenv", "run/.containerenv", "run/systemd/container"} {
		if err := os.Remove(filepath.Join(hostRoot, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	var line strings.Builder
	for _, word := range test.Args {
		fmt.Fprintf(&line, " %q", strings.NewReplacer("$", "$$", "%", "%%").Replace(word))
	}
	text := fmt.Sprintf(unit, test.Dir, strings.Join(append(test.Env, "WEIR_SYSTEMD=1"), " "), line.String(), filepath.Base(dir))
	if err := os.WriteFile(filepath.Join(units, "guest.service"), []byte(text), 0o644); err != nil {
		return err
	}
	if err := errors.Join(os.Chdir(hostRoot), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), os.Chdir("/")); err != nil {
		return fmt.Errorf("make the host's files the root: %w", err)
	}
	return unix.Exec("/lib/systemd/systemd", []string{"systemd", "--unit=guest.service", "--show-status=no"}, append(environment, "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TERM=dumb"))
}

// runTest returns the exit status of a test binary, -1 when it did not start.
func runTest(dir string, port *os.File) int {
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	if err != nil {
		fmt.Fprintln(port, err)
		return -1
	}
	test, err := command(dir, strings.Split(string(args), "\n"))
	if err != nil {
		fmt.Fprintln(port, err)
		return -1
	}
	test.Stdout, test.Stderr = port, port
	err = test.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(port, err)
		return -1
	}
	return 0
}
