package routerlab

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Realtime makes the router's daemons run before every ordinary process, as on a machine of their
// own: otherwise other hosts of the lab make them late, and BFD takes that for a loss.
func (f *FRR) Realtime() error {
	for _, d := range []*Daemon{f.Zebra, f.BGPD, f.BFDD} {
		if d == nil {
			continue
		}
		if err := d.Realtime(); err != nil {
			return err
		}
	}
	return nil
}

// Realtime does that for one daemon.
func (d *Daemon) Realtime() error {
	// New threads inherit this from the thread that makes them.
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", d.cmd.Process.Pid))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(filepath.Base(thread))
		if err != nil {
			return err
		}
		err = unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}, 0)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("real-time priority of %s: %w", d.name, err)
		}
	}
	return nil
}
