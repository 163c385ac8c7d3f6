package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"weir.io/weir/lab/netlab"
)

// CPUTime returns how long the process has run, all of its threads, in user and kernel mode. If the
// kernel is built without CONFIG_IRQ_TIME_ACCOUNTING, that includes softirqs that interrupted it.
func (p *Process) CPUTime() (time.Duration, error) { return CPUTimeOf(p.PID()) }

// CPUTime returns how long the host's processes have run together.
func CPUTime(host *netlab.Host) (time.Duration, error) {
	pids, err := host.Processes()
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, pid := range pids {
		time, err := CPUTimeOf(pid)
		if err != nil {
			return 0, err
		}
		sum += time
	}
	return sum, nil
}

// CPUTimeOf returns how long a process has run: it adds up its threads' run times, the first number
// of schedstat, in nanoseconds (kernel's Documentation/scheduler/sched-stats.rst).
func CPUTimeOf(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("run time of process %d: it is gone", pid)
	}
	var sum time.Duration
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		first, _, _ := strings.Cut(string(text), " ")
		ran, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", file, err)
		}
		sum += time.Duration(ran)
	}
	return sum, nil
}

// Find returns the process on a host with that first argument.
func Find(host *netlab.Host, argument string) (pid int, err error) {
	pids, err := host.Processes()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue // it has ended
		}
		if words := strings.Split(string(text), "\x00"); len(words) > 1 && words[1] == argument {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process %q on %s", argument, host.Name)
}

// Memory is how much memory a process uses, in bytes.
type Memory struct {
	Resident  uint64 // now, including mapped files
	Anonymous uint64 // the part of Resident that is the process's own
	Peak      uint64 // the most that Resident has been
}

// Memory reads the process's memory.
func (p *Process) Memory() (Memory, error) {
	m, err := MemoryOf(p.PID())
	if err != nil {
		err = fmt.Errorf("%s: %w", p.Name, err)
	}
	return m, err
}

// Descriptors returns how many files a process has open.
func Descriptors(pid int) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, fmt.Errorf("descriptors of process %d: %w", pid, err)
	}
	return len(entries), nil
}

// MemoryOf reads a process's memory.
func MemoryOf(pid int) (Memory, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	var m Memory
	fields := map[string]*uint64{"VmRSS": &m.Resident, "RssAnon": &m.Anonymous, "VmHWM": &m.Peak}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		to := fields[key]
		if to == nil {
			continue
		}
		kilobytes, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return Memory{}, fmt.Errorf("memory of process %d: %s: %w", pid, key, err)
		}
		*to = kilobytes << 10
		delete(fields, key)
	}
	if len(fields) > 0 {
		return Memory{}, fmt.Errorf("memory of process %d: the kernel does not say all of it", pid)
	}
	return m, nil
}
