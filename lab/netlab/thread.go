package netlab

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnCPU keeps the calling goroutine on a thread, and the thread on a CPU, until the returned function
// is called.
func OnCPU(cpu int) (free func(), err error) {
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, fmt.Errorf("read allowed CPUs: %w", err)
	}
	one.Set(cpu)
	runtime.LockOSThread()
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("move to CPU %d: %w", cpu, err)
	}
	return func() {
		_ = unix.SchedSetaffinity(0, &before) // it worked before
		runtime.UnlockOSThread()
	}, nil
}

// Urgent gives the calling goroutine a thread that runs before all ordinary ones, as what it stands
// for would on a machine of its own, until the returned function is called. A user who may not set a
// real-time priority (CONFIG_RT_GROUP_SCHED, in a control group without real time) gets the highest
// ordinary one, which still waits for the running thread's slice.
func Urgent(priority uint32) (free func(), err error) {
	runtime.LockOSThread()
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: priority}
	err = unix.SchedSetAttr(0, &attr, 0)
	if errors.Is(err, unix.EPERM) {
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) // as far as the user may
		err = nil
	}
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("take a real-time priority: %w", err)
	}
	return func() {
		// A thread that cannot be made ordinary again ends with its goroutine.
		if unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0) == nil {
			runtime.UnlockOSThread()
		}
	}, nil
}
