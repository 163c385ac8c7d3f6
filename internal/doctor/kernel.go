package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
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

// capabilityNames are those that loading programs and changing interfaces take.
var capabilityNames = []struct {
	bit  uint
	name string
}{
	{unix.CAP_BPF, "CAP_BPF"},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"},
	{unix.CAP_PERFMON, "CAP_PERFMON"},
}

// MissingCapabilities returns the capabilities that this process lacks to run a
// director or an agent. CAP_SYS_ADMIN stands for those of BPF.
func MissingCapabilities() ([]string, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil, fmt.Errorf("read capabilities: %w", err)
	}
	has := func(bit uint) bool { return data[bit/32].Effective&(1<<(bit%32)) != 0 }
	var missing []string
	for _, c := range capabilityNames {
		if !has(c.bit) && (c.bit == unix.CAP_NET_ADMIN || !has(unix.CAP_SYS_ADMIN)) {
			missing = append(missing, c.name)
		}
	}
	return missing, nil
}

func (x *examination) capabilities() {
	missing, err := MissingCapabilities()
	switch {
	case err != nil:
		x.fail("capabilities", "", "%v", err)
	case len(missing) > 0:
		x.fail("capabilities", "run as root, or give the process these", "%s missing", strings.Join(missing, ", "))
	default:
		x.ok("capabilities", "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON")
	}
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
		x.warn("bpffs", "weir run mounts it; by hand: mount -t bpf bpf "+path, "no BPF file system at %s", path)
		return
	}
	x.ok("bpffs", "mounted at %s", path)
}
