package bfd

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// priority is the lowest that is before all that is not real-time. A higher one is not needed: the
// kernel's own threads for packets and timers are either below it as well, or above.
const priority = 1

// Realtime makes this process run before every ordinary one, and locks its memory. If one is not
// permitted, the other is still done.
//
// All threads are made real-time, not only the one that speaks: that one would have to wait for a
// thread of Go's that stops the world and then does not get the CPU. New threads are like the one
// that makes them. The kernel leaves 5 % of the time to others (sched_rt_runtime_us), whatever
// happens.
func Realtime() error { return errors.Join(realtime(), lock()) }

func realtime() error {
	// Until a pass finds no thread to change: threads may be made meanwhile.
	for done := map[int]bool{}; ; {
		fresh, err := threads(done)
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		if len(fresh) == 0 {
			return nil
		}
		for _, id := range fresh {
			err := unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: priority}, 0)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("real-time priority (CAP_SYS_NICE, and real-time for the control group): %w", err)
			}
			done[id] = true
		}
	}
}

func threads(but map[int]bool) ([]int, error) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, err
	}
	var fresh []int
	for _, e := range entries {
		if id, err := strconv.Atoi(e.Name()); err == nil && !but[id] {
			fresh = append(fresh, id)
		}
	}
	return fresh, nil
}

// garbage is how much garbage there may be before it is collected, in percent of the memory in use.
// By default it may be 4 MB, four times what this process uses, which it makes in some minutes;
// locked memory stays resident, so the process would grow to that. Collecting this little takes a
// millisecond or two, beside BFD, every half minute.
const garbage = 25

// lock keeps pages in memory once they are there: else a program's text is read back from a disk,
// which may take as long as a neighbor's patience.
func lock() error {
	if os.Getenv("GOGC") == "" { // the environment may set it
		debug.SetGCPercent(garbage)
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("keep the memory (CAP_IPC_LOCK): %w", err)
	}
	return nil
}
