package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/doctor"
)

func addBPFFS(cmd *cobra.Command, bpffs *string) {
	cmd.Flags().StringVar(bpffs, "bpffs", defaultBPFFS, "`directory` of the BPF file system, which keeps the datapath")
}

func pinDirectory(bpffs string) string { return filepath.Join(bpffs, "weir") }

// prepareHost turns what would be a riddle later into an error now, and mounts
// the BPF file system where it is not.
func prepareHost(bpffs string) error {
	if err := needCapabilities(); err != nil {
		return err
	}
	return mountBPFFS(bpffs)
}

func needCapabilities() error {
	missing, err := doctor.MissingCapabilities()
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s missing: run as root, or give the process these capabilities", strings.Join(missing, ", "))
	}
	return nil
}

func mountBPFFS(path string) error {
	var fs unix.Statfs_t
	err := unix.Statfs(path, &fs)
	if errors.Is(err, unix.ENOENT) {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make a directory for the BPF file system: %w", err)
		}
	} else if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if fs.Type == unix.BPF_FS_MAGIC {
		return nil
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
