package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The kernel sums up stalls every two seconds (PSI_FREQ in kernel/sched/psi.c): reading them more
// often gives the same again.
const pressureEvery = 2 * time.Second

// pressure says in what part of the time some task waits for a CPU: Linux's PSI, of the host, and
// of a server's cgroup if it has one. Without PSI there is no pressure.
type pressure struct {
	host   stalls
	groups map[uint64]*groupStalls
	mount  string // the directory of cgroup v2, or ""
	read   func() (string, error)
}

// stalls is the last reading of one pressure file.
type stalls struct {
	total time.Duration // how long some task had waited, at the last look
	at    time.Time     // of the last look; zero: there was none
	share float64       // of the time between the last two looks
}

type groupStalls struct {
	stalls
	used   time.Time // by the last look that needed it
	dir    string    // of the cgroup; "": it was not found
	sought time.Time
}

func newPressure() pressure {
	p := pressure{groups: map[uint64]*groupStalls{}}
	p.read = func() (string, error) { text, err := os.ReadFile("/proc/pressure/cpu"); return string(text), err }
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		p.mount = unifiedIn(string(mounts))
	}
	return p
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

// of returns the pressure of a server in a cgroup; 0: its cgroup is not known.
func (p *pressure) of(group uint64, now time.Time) float64 {
	p.host.look(now, p.read)
	if group == 0 || p.mount == "" {
		return p.host.share
	}
	g := p.groups[group]
	if g == nil {
		p.forget(now)
		g = &groupStalls{}
		p.groups[group] = g
	}
	g.used = now
	g.look(now, func() (string, error) { return p.readGroup(group, g, now) })
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

// look reads a file if it may say something new. A file that cannot be read counts as no pressure:
// neither every kernel nor every cgroup has one.
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

// stalledIn returns for how long some task has waited: the total, in microseconds, of the line
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

// seekEvery is how often the agent looks for a cgroup that has left its place or was not
// found: a cgroup that this host does not show will not appear later.
const seekEvery = time.Minute

// readGroup reads the pressure of a cgroup. Its number is that of its directory's inode; a handle
// with it would find the directory at once, but takes CAP_DAC_READ_SEARCH, which reads any file.
func (p *pressure) readGroup(id uint64, g *groupStalls, now time.Time) (string, error) {
	if g.dir != "" {
		if text, err := os.ReadFile(filepath.Join(g.dir, "cpu.pressure")); err == nil {
			return string(text), nil
		}
		g.dir = ""
	}
	if !g.sought.IsZero() && now.Sub(g.sought) < seekEvery {
		return "", fs.ErrNotExist
	}
	g.sought, g.dir = now, findDirectory(p.mount, id)
	if g.dir == "" {
		return "", fs.ErrNotExist
	}
	text, err := os.ReadFile(filepath.Join(g.dir, "cpu.pressure"))
	return string(text), err
}

// findDirectory returns the directory with that inode number, or "".
func findDirectory(below string, inode uint64) (found string) {
	_ = filepath.WalkDir(below, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // cgroups come and go
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		if stat, is := info.Sys().(*syscall.Stat_t); is && stat.Ino == inode {
			found = path
			return fs.SkipAll
		}
		return nil
	})
	return found
}
