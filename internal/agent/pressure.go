package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel sums up stalls every two seconds (PSI_FREQ in kernel/sched/psi.c): who asks more
// often hears the same again.
const pressureEvery = 2 * time.Second

// pressure says in what part of the time somebody waits for a CPU: Linux's PSI, of the host, and
// of a server's cgroup where it has one. Without PSI it is none.
type pressure struct {
	host   stalls
	groups map[uint64]*groupStalls
	mount  int // the directory of cgroup v2, or -1
	read   func() (string, error)
}

// stalls is what is known of one file.
type stalls struct {
	total time.Duration // that somebody has waited, at the last look
	at    time.Time     // of it; zero: there was none
	share float64       // of the time between the last two
}

type groupStalls struct {
	stalls
	used time.Time // by a look
}

func newPressure() pressure {
	p := pressure{groups: map[uint64]*groupStalls{}, mount: -1}
	p.read = func() (string, error) { text, err := os.ReadFile("/proc/pressure/cpu"); return string(text), err }
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		if at := unifiedIn(string(mounts)); at != "" {
			if fd, err := unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
				p.mount = fd
			}
		}
	}
	return p
}

func (p *pressure) close() {
	if p.mount >= 0 {
		_ = unix.Close(p.mount)
	}
	p.mount = -1
}

// unifiedIn returns where cgroup v2 is mounted, or "" (proc(5), mountinfo: the type follows a
// dash).
func unifiedIn(mounts string) string {
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(before); strings.HasPrefix(after, "cgroup2 ") && len(fields) > 4 {
			return fields[4]
		}
	}
	return ""
}

// of returns the pressure of a server in a cgroup, or in none that is known: 0.
func (p *pressure) of(group uint64, now time.Time) float64 {
	p.host.look(now, p.read)
	if group == 0 || p.mount < 0 {
		return p.host.share
	}
	g := p.groups[group]
	if g == nil {
		p.forget(now)
		g = &groupStalls{}
		p.groups[group] = g
	}
	g.used = now
	g.look(now, func() (string, error) { return p.readGroup(group) })
	return max(p.host.share, g.share)
}

// forget forgets cgroups whose server is gone.
func (p *pressure) forget(now time.Time) {
	for id, g := range p.groups {
		if now.Sub(g.used) > 5*pressureEvery {
			delete(p.groups, id)
		}
	}
}

// look reads a file if it may say something new. One that cannot be read says that there is no
// pressure: neither every kernel nor every cgroup has one.
func (s *stalls) look(now time.Time, read func() (string, error)) {
	passed := now.Sub(s.at)
	if !s.at.IsZero() && passed < pressureEvery {
		return
	}
	text, err := read()
	if err == nil {
		var total time.Duration
		if total, err = stalledIn(text); err == nil {
			if !s.at.IsZero() && total >= s.total {
				s.share = min(float64(total-s.total)/float64(passed), 1)
			}
			s.total, s.at = total, now
			return
		}
	}
	*s = stalls{at: now}
}

// stalledIn returns for how long somebody has waited: the total, in microseconds, of the line
// "some" (Documentation/accounting/psi.rst).
func stalledIn(text string) (time.Duration, error) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "some ") {
			continue
		}
		for _, field := range strings.Fields(line) {
			if value, is := strings.CutPrefix(field, "total="); is {
				n, err := strconv.ParseInt(value, 10, 64)
				if err != nil {
					return 0, fmt.Errorf("read pressure: %w", err)
				}
				return time.Duration(n) * time.Microsecond, nil
			}
		}
	}
	return 0, errors.New("read pressure: there is no total of some")
}

// kernfsHandle is FILEID_KERNFS (linux/exportfs.h): a handle with the number of a cgroup.
const kernfsHandle = 0xfe

// readGroup reads the pressure of a cgroup, which the kernel finds by its number.
func (p *pressure) readGroup(id uint64) (string, error) {
	handle := unix.NewFileHandle(kernfsHandle, binary.NativeEndian.AppendUint64(nil, id))
	dir, err := unix.OpenByHandleAt(p.mount, handle, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := unix.Openat(dir, "cpu.pressure", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	file := os.NewFile(uintptr(fd), "cpu.pressure")
	defer file.Close()
	text, err := io.ReadAll(file)
	return string(text), err
}
