package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// NAPI is the kernel threads that handle what arrives at a port: their work is separate from
// everything else on the machine, and its time can be read.
type NAPI struct {
	port    *netlab.Port
	threads []int
}

// mostUrgent is the priority of a thread that ordinary threads hardly delay.
const mostUrgent = -20

// ThreadNAPI gives the receiving side of a port kernel threads (threaded NAPI), and the threads a
// CPU. The port needs NAPI: GRO or an XDP program.
func ThreadNAPI(port *netlab.Port, cpu int) (*NAPI, error) {
	before, err := napiThreads(port)
	if err != nil {
		return nil, err
	}
	if err := setThreaded(port); err != nil {
		return nil, fmt.Errorf("make NAPI of %s of %s a thread: %w", port.Name, port.Host.Name, err)
	}
	after, err := napiThreads(port)
	if err != nil {
		return nil, err
	}
	n := &NAPI{port: port}
	for pid := range after {
		if !before[pid] {
			n.threads = append(n.threads, pid)
		}
	}
	if len(n.threads) == 0 {
		return nil, fmt.Errorf("NAPI of %s of %s has no thread", port.Name, port.Host.Name)
	}
	var set unix.CPUSet
	set.Set(cpu)
	for _, pid := range n.threads {
		if err := unix.SchedSetaffinity(pid, &set); err != nil {
			return nil, fmt.Errorf("move NAPI of %s of %s to CPU %d: %w", port.Name, port.Host.Name, cpu, err)
		}
		// Otherwise any program that runs there for a moment costs packets: a veth holds 256.
		if err := unix.Setpriority(unix.PRIO_PROCESS, pid, mostUrgent); err != nil {
			return nil, fmt.Errorf("hurry NAPI of %s of %s: %w", port.Name, port.Host.Name, err)
		}
	}
	return n, nil
}

// RealTime gives the threads a real-time priority: then other threads do not delay them, as they do
// not delay a NIC's interrupt.
func (n *NAPI) RealTime(priority uint32) error {
	for _, pid := range n.threads {
		attr := unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: priority}
		if err := unix.SchedSetAttr(pid, &attr, 0); err != nil {
			return fmt.Errorf("give NAPI of %s of %s a real-time priority: %w", n.port.Name, n.port.Host.Name, err)
		}
	}
	return nil
}

// CPUTime returns how long the threads have run.
func (n *NAPI) CPUTime() (time.Duration, error) {
	var sum time.Duration
	for _, pid := range n.threads {
		ran, err := CPUTimeOf(pid)
		if err != nil {
			return 0, fmt.Errorf("NAPI of %s of %s: %w", n.port.Name, n.port.Host.Name, err)
		}
		sum += ran
	}
	return sum, nil
}

func setThreaded(port *netlab.Port) error {
	sys := filepath.Join(port.Host.Dir(), "sys")
	if err := os.MkdirAll(sys, 0o755); err != nil {
		return err
	}
	return port.Host.Do(func() error {
		// A mount of sysfs shows the network devices of the namespace it is made in.
		if err := unix.Mount("sysfs", sys, "sysfs", 0, ""); err != nil {
			return fmt.Errorf("mount sysfs: %w", err)
		}
		defer func() { _ = unix.Unmount(sys, unix.MNT_DETACH) }() // nothing keeps it busy
		return os.WriteFile(filepath.Join(sys, "class/net", port.Name, "threaded"), []byte("1"), 0o644)
	})
}

// napiThreads returns the kernel threads that are named after a port, on any host.
func napiThreads(port *netlab.Port) (map[int]bool, error) {
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	pids := map[int]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(text), "napi/"+port.Name+"-") {
			continue // another thread, or gone
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		pids[pid] = true
	}
	return pids, nil
}
