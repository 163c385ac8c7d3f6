package daemon

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/agent"
	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
)

// PinDirectory is the directory of what weir leaves in the kernel.
func PinDirectory(bpffs string) string { return filepath.Join(bpffs, "weir") }

// PrepareHost turns later, obscure failures into a clear error now, mounts the BPF file system if
// it is not mounted, and drops all privileges that the process no longer needs. ran is the version of the
// configuration that ran last, with which the process may have to go on; nil: there is none.
func PrepareHost(bpffs string, process privilege.Process, c, ran *model.Config, log *slog.Logger) error {
	if err := NeedCapabilities(process, c, log); err != nil {
		return err
	}
	if err := mountBPFFS(bpffs); err != nil {
		return err
	}
	if ran == nil {
		ran = c
	}
	return KeepCapabilities(process, log, c, ran)
}

// NeedCapabilities names the capabilities that a configuration lacks; nil: those that every
// configuration needs.
func NeedCapabilities(process privilege.Process, c *model.Config, log *slog.Logger) error {
	var missing []string
	for _, n := range privilege.Missing(process, c) {
		if n.Optional {
			// Of those that are handed on, weir bfd warns itself: it may have them from elsewhere.
			log.Debug("capability missing, it works without", "capability", n.Capability, "for", n.For)
			continue
		}
		missing = append(missing, n.String())
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s missing: run as root, or give the process these capabilities", strings.Join(missing, ", "))
	}
	return nil
}

// KeepCapabilities drops the capabilities that the process does not need.
func KeepCapabilities(process privilege.Process, log *slog.Logger, configs ...*model.Config) error {
	kept, err := privilege.Keep(process, configs...)
	if err == nil {
		log.Debug("capabilities kept", "capabilities", kept)
	}
	return err
}

// usualBPFFS is where hosts mount the BPF file system. No directory can be made there before that.
const usualBPFFS = "/sys/fs/bpf"

// mountBPFFS makes a directory on the BPF file system, which it mounts there, or at the usual place
// around it, if it is not mounted.
func mountBPFFS(path string) error {
	var fs unix.Statfs_t
	err := unix.Statfs(path, &fs)
	if errors.Is(err, unix.ENOENT) {
		if strings.HasPrefix(filepath.Clean(path), usualBPFFS+"/") {
			if err := mountBPFFS(usualBPFFS); err != nil {
				return err
			}
		}
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make a directory for the BPF file system: %w", err)
		}
		err = unix.Statfs(path, &fs) // it may have been made on one
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if fs.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	// Director and agents that start at the same moment must not hide each other's mount.
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	if err := unix.Statfs(path, &fs); err != nil || fs.Type == unix.BPF_FS_MAGIC {
		return err
	}
	if err := nothingIn(path, dir); err != nil {
		return err
	}
	err = unix.Mount("bpf", path, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700")
	switch {
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("mount the BPF file system at %s: this kernel has no BPF (CONFIG_BPF_SYSCALL)", path)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("mount the BPF file system at %s: mounting takes CAP_SYS_ADMIN; let the host do it (mount -t bpf bpf %s): %w", path, path, err)
	case err != nil:
		return fmt.Errorf("mount the BPF file system at %s: %w", path, err)
	}
	return nil
}

// nothingIn refuses a directory that is not empty: a mount would hide its contents.
func nothingIn(path string, dir *os.File) error {
	if names, err := dir.Readdirnames(1); err == nil {
		return fmt.Errorf("--bpffs %s is no BPF file system, and has %q and perhaps more in it, which would be hidden if one were mounted there: name an empty directory, or one on a BPF file system", path, names[0])
	} else if !errors.Is(err, io.EOF) {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	return nil
}

// NotOpened says that the pinned programs could not be taken over, what that means and what can be
// done. The process ends with this error, and the service manager tries again: the process can do
// nothing without its programs, and the pinned ones go on without it.
func NotOpened(pin string, err error) error {
	fix := ""
	switch {
	case errors.Is(err, datapath.ErrRunning), errors.Is(err, agent.ErrRunning):
		return err
	case errors.Is(err, unix.EROFS):
		fix = fmt.Sprintf("; the file system is read-only: mount -o remount,rw %s", filepath.Dir(pin))
	case errors.Is(err, unix.ENOSPC):
		fix = "; the file system is full"
	case errors.Is(err, unix.ENOMEM):
		fix = "; there is no memory for the tables: give the process more (MemoryMax=), or have less in director.limits and agent.udp-flows"
	// Where cilium/ebpf duplicates a descriptor, it keeps of this error only the text.
	case errors.Is(err, unix.EMFILE), strings.Contains(err.Error(), unix.EMFILE.Error()):
		fix = "; give the process more files (LimitNOFILE=)"
	}
	return fmt.Errorf("take over what is pinned in %s: %w%s. What an earlier process has left there goes on", pin, err, fix)
}
