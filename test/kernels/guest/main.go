// Command guest is the init of the machines that test/kernels boots: it mounts what
// the tests expect, loads the modules in the order of their names, runs every test
// binary, says on the second serial port how each ended, and powers off.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mounts in their order: device type and place.
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
	if err := run(); err != nil {
		// The kernel's console: the second port may be what is missing.
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
	port, err := os.OpenFile("/dev/ttyS1", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	if err := loadModules("/modules"); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	tests, err := filepath.Glob("/tests/*")
	if err != nil {
		return err
	}
	for _, dir := range tests {
		fmt.Fprintf(port, "guest: exit %s %d\n", filepath.Base(dir), runTest(dir, port))
	}
	fmt.Fprintln(port, "guest: done")
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

// runTest returns the exit status of a test binary, -1 when it did not start.
func runTest(dir string, port *os.File) int {
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	if err != nil {
		fmt.Fprintln(port, err)
		return -1
	}
	test := exec.Command("./test", strings.Split(string(args), "\n")...)
	test.Dir = dir
	test.Env = []string{"PATH=/bin", "HOME=/tmp", "TMPDIR=/tmp"}
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
