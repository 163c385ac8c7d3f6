package privilege

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// nobody is the user of programs that root would start, and its number where no file says it.
const (
	nobody       = "nobody"
	nobodyNumber = 65534
)

// Account returns the user of a program that must have no rights of this process's: the named user or, without
// a name, this process's own if that is not root, else nobody. nil: this process's own.
func Account(name string) (*syscall.Credential, error) {
	if name == "" {
		if os.Geteuid() != 0 {
			return nil, nil
		}
		name = nobody
	}
	c := &syscall.Credential{Uid: nobodyNumber, Gid: nobodyNumber}
	known, err := user.Lookup(name)
	switch {
	case err == nil:
		uid, err1 := strconv.ParseUint(known.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(known.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		c.Uid, c.Gid = uint32(uid), uint32(gid)
	case name != nobody:
		return nil, fmt.Errorf("user %s: %w", name, err)
	}
	if c.Uid == 0 || c.Gid == 0 {
		return nil, fmt.Errorf("user %s is root, or of its group", name)
	}
	if int(c.Uid) == os.Geteuid() {
		return nil, nil
	}
	have := cap.GetProc()
	var lacks []string
	for _, n := range Needs(Run) {
		if n.For == anotherUser && !has(have, n.value) {
			lacks = append(lacks, n.Capability)
		}
	}
	if len(lacks) > 0 {
		return nil, fmt.Errorf("to run programs as user %s, this process lacks %s: give it these and start it again", name, strings.Join(lacks, ", "))
	}
	return c, nil
}
