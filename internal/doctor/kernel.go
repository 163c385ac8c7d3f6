package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/privilege"
)

// The oldest kernel that weir is tested on.
const minMajor, minMinor = 6, 1

func (x *examination) kernel() {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		x.fail("kernel", "", "its version cannot be read: %v", err)
		return
	}
	release := unix.ByteSliceToString(name.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		x.warn("kernel", "", "version %q is not one of Linux; %d.%d or newer is needed", release, minMajor, minMinor)
		return
	}
	if major < minMajor || major == minMajor && minor < minMinor {
		x.fail("kernel", "install a newer kernel", "%s is too old; %d.%d or newer is needed", release, minMajor, minMinor)
		return
	}
	x.ok("kernel", "%s", release)
}

// capabilities examines this process for what every director and every agent needs, which is the
// same. The needs of their configuration are examined with the rest of it: see needed.
func (x *examination) capabilities() {
	missing := privilege.Missing(privilege.Run, nil)
	for _, n := range missing {
		x.lacks(n)
	}
	if len(missing) > 0 {
		return
	}
	var names []string
	for _, n := range privilege.Needs(privilege.Run) {
		if n.Always() {
			names = append(names, n.Capability)
		}
	}
	x.ok("capabilities", "%s", strings.Join(names, ", "))
}

// needed examines whether this process has what a configuration needs of a director or an agent.
func (x *examination) needed(process privilege.Process) {
	for _, n := range privilege.Missing(process, x.config) {
		if !n.Always() {
			x.lacks(n)
		}
	}
}

func (x *examination) lacks(n privilege.Need) {
	const fix = "run as root, or give the process this capability"
	if n.Optional {
		x.warn("capabilities", fix, "%s missing", n)
		return
	}
	x.known("capabilities", fix, "%s missing", n)
}

func (x *examination) bpf() {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "weir_doctor", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	switch {
	case errors.Is(err, unix.ENOSYS):
		x.fail("bpf", "use a kernel with CONFIG_BPF_SYSCALL", "this kernel has no BPF")
		return
	case errors.Is(err, unix.EPERM):
		x.fail("bpf", "run as root; in a container allow the bpf system call (seccomp)", "the kernel refuses BPF to this process")
		return
	case err != nil:
		x.fail("bpf", "", "a map cannot be made: %v", err)
		return
	}
	m.Close()
	x.ok("bpf", "maps can be made")
	x.jit()
}

// jit reads a sysctl that only the first network namespace has.
func (x *examination) jit() {
	text, err := os.ReadFile("/proc/sys/net/core/bpf_jit_enable")
	if err != nil {
		return
	}
	if strings.TrimSpace(string(text)) == "0" {
		x.warn("jit", "sysctl -w net.core.bpf_jit_enable=1", "programs are interpreted, many times slower than compiled")
		return
	}
	x.ok("jit", "programs are compiled")
}

func (x *examination) bpffs(path string) {
	var fs unix.Statfs_t
	err := unix.Statfs(path, &fs)
	if err != nil || fs.Type != unix.BPF_FS_MAGIC {
		at := path
		if strings.HasPrefix(filepath.Clean(path), "/sys/fs/bpf/") {
			at = "/sys/fs/bpf" // no directory can be made there before that
		}
		x.warn("bpffs", "weir run mounts it; by hand: mount -t bpf bpf "+at, "no BPF file system at %s", path)
		return
	}
	x.ok("bpffs", "mounted at %s", path)
}
