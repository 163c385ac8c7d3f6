package bfd

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// priority is the least that is before all that is not real-time. More is not needed:
// the kernel's own threads for packets and timers are either below it as well, or above.
const priority = 1

// Realtime makes this process run before every ordinary one, and keeps its memory where
// it is. Either may not be permitted: the other is done all the same.
//
// All threads are made so, not only the one that speaks: that one would have to wait
// for one of Go's that stops the world and is then not given the CPU itself. Threads
// that are made later are like the one that makes them. The kernel leaves 5 % of the
// time to others (sched_rt_runtime_us), whatever happens.
func Realtime() error { return errors.Join(realtime(), lock()) }

func realtime() error {
	// Until a pass finds none to change: threads may be made meanwhile.
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

// garbage is how much of it there may be before it is collected, in per cent of what is in use.
// By default there may be 4 MB, four times as much as this process uses, which it makes in some
// minutes; what is locked stays resident, so it would grow to that. Collecting the little that
// there is takes a millisecond or two, beside what speaks BFD, every half minute.
const garbage = 25

// lock keeps what is in memory there, once it is: a program's text is read back from a
// disk otherwise, and that may take as long as a neighbour's patience.
func lock() error {
	if os.Getenv("GOGC") == "" { // somebody may want it otherwise
		debug.SetGCPercent(garbage)
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("keep the memory (CAP_IPC_LOCK): %w", err)
	}
	return nil
}
