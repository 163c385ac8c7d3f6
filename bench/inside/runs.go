package inside

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Runs is how often a program has run, and how long that took. The kernel counts while a
// [Clock] is on.
type Runs struct {
	Count uint64
	Time  time.Duration
}

// Since is the difference to an earlier reading.
func (r Runs) Since(before Runs) Runs { return Runs{r.Count - before.Count, r.Time - before.Time} }

var errNoLinks = errors.New("no link of the agent is pinned")

// AgentRuns reads the runs of an agent's programs, by their names, from its pin directory.
func AgentRuns(pin string) (map[string]Runs, error) {
	paths, err := filepath.Glob(filepath.Join(pin, "agent", "links", "*"))
	if err != nil {
		return nil, err
	}
	runs := map[string]Runs{}
	for _, path := range paths {
		if err := addRuns(runs, path); err != nil {
			return nil, fmt.Errorf("runs of %s: %w", path, err)
		}
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("%s: %w", pin, errNoLinks)
	}
	return runs, nil
}

func addRuns(runs map[string]Runs, path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	attached, err := l.Info()
	if err != nil {
		return err
	}
	program, err := ebpf.NewProgramFromID(attached.Program)
	if err != nil {
		return err
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return err
	}
	stats, err := program.Stats()
	if err != nil {
		return err
	}
	runs[info.Name] = Runs{stats.RunCount, stats.Runtime}
	return nil
}

// Clock makes the kernel measure each run of each program, until it is closed. The measurement
// takes time, too.
type Clock struct {
	Overhead time.Duration // contained in the measured time of a run
	close    func() error
}

// probing is how often an empty program is run.
const probing = 200_000

// NewClock turns the measurement on, and measures its own overhead.
func NewClock() (*Clock, error) {
	on, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("measure runs of programs: %w", err)
	}
	c := &Clock{close: on.Close}
	empty, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load a program that does nothing: %w", err), on.Close())
	}
	defer empty.Close()
	_, err = empty.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: probing})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("run a program that does nothing: %w", err), on.Close())
	}
	stats, err := empty.Stats()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("runs of a program that does nothing: %w", err), on.Close())
	}
	c.Overhead = stats.Runtime / time.Duration(max(stats.RunCount, 1))
	return c, nil
}

// Close turns the measurement off.
func (c *Clock) Close() error { return c.close() }
