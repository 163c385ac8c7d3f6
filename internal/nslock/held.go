package nslock

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// HeldError says which process has a lock.
type HeldError struct {
	Name    string // of the abstract unix socket: "@weir/agent"
	Process int    // its number; 0: it is in another PID namespace, or is not found
	Command string // its name; empty: not known
	User    uint32
	// Able says whether the process may change this network namespace, as far as is known: it can be
	// one of weir's.
	Able bool
}

// Error names the process.
func (e *HeldError) Error() string {
	holder := fmt.Sprintf("process %d (%s) of user %d", e.Process, e.Command, e.User)
	switch {
	case e.Process == 0:
		holder = fmt.Sprintf("a process of another PID namespace, of user %d,", e.User)
	case e.Command == "":
		holder = fmt.Sprintf("process %d of user %d", e.Process, e.User)
	}
	text := holder + " holds " + e.Name + " in this network namespace"
	if !e.Able {
		text += ", and is none of weir's: it may not change the network"
	}
	return text
}

// Foreign reports whether the process could not do weir's work: it has only taken the name.
func (e *HeldError) Foreign() bool { return !e.Able }

// heldBy describes a holder.
func heldBy(name string, process int, user uint32) *HeldError {
	held := &HeldError{Name: name, Process: process, User: user}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", process)); err == nil {
		held.Command = strings.TrimSpace(string(text))
	}
	able, known := mayChangeNetwork(process)
	if !known { // it is in another PID namespace, or /proc hides it (hidepid)
		able = user == 0 || user == uint32(os.Geteuid())
	}
	held.Able = able
	return held
}

// mayChangeNetwork reports whether a process has CAP_NET_ADMIN, without which none of weir's processes
// that take locks works. The same capability in a user namespace of its own, as root of a container
// without privileges has it, is none.
func mayChangeNetwork(process int) (able, known bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process))
	if err != nil {
		return false, false
	}
	for line := range strings.Lines(string(status)) {
		if text, is := strings.CutPrefix(line, "CapEff:"); is {
			effective, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return effective&(1<<unix.CAP_NET_ADMIN) != 0 && sameUserNamespace(process), err == nil
		}
	}
	return false, false
}

// sameUserNamespace compares the user namespaces of a process and this one by their maps of
// users: everybody may read these, while the link to the namespace takes CAP_SYS_PTRACE. A
// process without privileges that makes a user namespace cannot give it the map of another one.
func sameUserNamespace(process int) bool {
	its, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", process))
	if err != nil {
		return true // else a second director could go unnoticed
	}
	own, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || string(own) == string(its)
}
