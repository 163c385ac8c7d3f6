package netlab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command is an [exec.Cmd] whose process starts on a host.
type Command struct {
	*exec.Cmd
	host *Host
}

// Command prepares a process on the host. Its network namespace is all that
// differs: unlike under "ip netns exec" /sys is not mounted again, so the process
// sees BPF file systems and cgroups. Closing the lab kills it.
//
// Its STATE_DIRECTORY, where services keep what outlives them, is the host's own.
//
// It has a process group of its own, so that an interrupt from the terminal
// reaches only the process that owns the lab, which decides what it means.
func (h *Host) Command(ctx context.Context, name string, args ...string) *Command {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = append(os.Environ(), "STATE_DIRECTORY="+filepath.Join(h.Dir(), "state"), "WEIR_EMULATED_NICS="+filepath.Join(h.Dir(), "bpf"))
	return &Command{cmd, h}
}

// Start starts the process on its host.
func (c *Command) Start() error { return c.host.Do(c.Cmd.Start) }

// Run starts the process on its host and waits for it.
func (c *Command) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the process on its host and returns what it printed. Its error
// has what it printed as errors.
func (c *Command) Output() ([]byte, error) {
	// The thread stays in the namespace until the process ends, which is harmless.
	return c.hosted(c.Cmd.Output)
}

// CombinedOutput runs the process on its host and returns what it printed, errors
// among it.
func (c *Command) CombinedOutput() ([]byte, error) { return c.hosted(c.Cmd.CombinedOutput) }

func (c *Command) hosted(run func() ([]byte, error)) (out []byte, err error) {
	err = c.host.Do(func() error {
		out, err = run()
		return err
	})
	return out, err
}

// Kill kills every process on the host, as a power cut does, and waits for their end.
func (h *Host) Kill() error { return killIn([]string{filepath.Join(namespaceDir, h.Namespace())}) }

// Processes returns the processes on the host except this one, whose threads come and go there.
func (h *Host) Processes() ([]int, error) {
	id, err := identify(filepath.Join(namespaceDir, h.Namespace()))
	if err != nil {
		return nil, fmt.Errorf("find namespace of %s: %w", h.Name, err)
	}
	return processesIn(map[fileID]bool{id: true}), nil
}

// killIn kills every process except this one whose network namespace is one of
// those files, and waits for their end. Processes are found by their namespace:
// they need not be our children, or in the process group of one.
func killIn(namespaces []string) error {
	ids := map[fileID]bool{}
	for _, path := range namespaces {
		if id, err := identify(path); err == nil {
			ids[id] = true
		}
	}
	killed := map[int]int{} // their pidfds
	defer func() {
		for _, fd := range killed {
			unix.Close(fd)
		}
	}()
	deadline := time.Now().Add(10 * time.Second)
	for ; ; time.Sleep(5 * time.Millisecond) {
		left := processesIn(ids)
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not end", left)
		}
		for _, pid := range left {
			if err := kill(pid, killed); err != nil && err != unix.ESRCH {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
	}
	// The kernel takes a process out of its namespace before it closes what the process
	// had open, which takes a while where that is BPF programs and packet sockets.
	for pid, fd := range killed {
		if !ends(fd, deadline) {
			return fmt.Errorf("process %d does not end", pid)
		}
	}
	return nil
}

// kill kills a process and keeps its pidfd.
func kill(pid int, killed map[int]int) error {
	if _, again := killed[pid]; !again {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		killed[pid] = fd
	}
	return unix.PidfdSendSignal(killed[pid], unix.SIGKILL, nil, 0)
}

// ends waits until a process has ended: it may be a zombie then.
func ends(pidfd int, deadline time.Time) bool {
	for {
		left := max(0, time.Until(deadline).Milliseconds())
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(left))
		if err != unix.EINTR {
			return n == 1
		}
	}
}

// processesIn returns the processes in those network namespaces. A zombie has
// none and is not among them.
func processesIn(ids map[fileID]bool) []int {
	var pids []int
	links, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, link := range links {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if id, err := identify(link); err == nil && ids[id] {
			pids = append(pids, pid)
		}
	}
	return pids
}

// fileID is what tells two namespaces apart.
type fileID struct{ dev, inode uint64 }

func identify(path string) (fileID, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return fileID{}, err
	}
	return fileID{stat.Dev, stat.Ino}, nil
}
