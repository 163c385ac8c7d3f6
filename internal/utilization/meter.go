package utilization

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Meter counts the packet work of every CPU between Start and Stop. Nothing of it is pinned: it
// ends with its process.
type Meter struct {
	kernel bpfObjects
	online []int // CPUs, when it was opened

	mu      sync.Mutex
	links   []link.Link // none while it does not count; the collector would detach links that are not kept
	started time.Time
	counted time.Duration // until it was last stopped
}

// Open begins to count. The error names what this kernel or process may not do.
func Open() (*Meter, error) {
	m, err := load()
	if err != nil {
		return nil, err
	}
	if err := m.Start(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Start resumes counting, if it is stopped.
func (m *Meter) Start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.links != nil {
		return nil
	}
	if err := m.restart(); err != nil {
		return err
	}
	if err := m.attach(); err != nil {
		return errors.Join(err, m.detach())
	}
	m.started = time.Now()
	return nil
}

// Stop pauses the counting: then the tracepoints cost packets nothing.
func (m *Meter) Stop() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stop()
}

// stop does so. The lock is held.
func (m *Meter) stop() error {
	if m.links == nil {
		return nil
	}
	m.counted += time.Since(m.started)
	return m.detach()
}

// restart makes the programs forget what each CPU was doing.
func (m *Meter) restart() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	if err := m.kernel.Since.Set(uint64(now.Nano())); err != nil {
		return fmt.Errorf("tell the programs for tracepoints when counting begins: %w", err)
	}
	return nil
}

func load() (*Meter, error) {
	online, err := onlineCPUs()
	if err != nil {
		return nil, err
	}
	// Before Linux 5.11 this limits the memory of maps; without the right to lift it the loader
	// says what is missing.
	_ = rlimit.RemoveMemlock()
	m := &Meter{online: online}
	if err := loadBpfObjects(&m.kernel, nil); err != nil {
		return nil, fmt.Errorf("load the programs for tracepoints: %w", err)
	}
	return m, nil
}

func (m *Meter) attach() error {
	for _, at := range []struct {
		tracepoint string
		program    *ebpf.Program
	}{
		{"softirq_entry", m.kernel.SoftirqEntry},
		{"softirq_exit", m.kernel.SoftirqExit},
		{"napi_poll", m.kernel.NapiPoll},
	} {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: at.tracepoint, Program: at.program})
		if err != nil {
			return fmt.Errorf("attach to tracepoint %s: %w", at.tracepoint, err)
		}
		m.links = append(m.links, l)
	}
	l, err := link.AttachTracing(link.TracingOptions{Program: m.kernel.SchedSwitch})
	if err != nil {
		return fmt.Errorf("attach to tracepoint sched_switch: %w", err)
	}
	m.links = append(m.links, l)
	return nil
}

func (m *Meter) detach() error {
	var errs []error
	for _, l := range m.links {
		errs = append(errs, l.Close())
	}
	m.links = nil
	return errors.Join(errs...)
}

// Close ends the counting. A later Read is an error.
func (m *Meter) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := errors.Join(m.stop(), m.kernel.Close()); err != nil {
		return fmt.Errorf("close the meter of utilization: %w", err)
	}
	return nil
}

// onlineCPUs returns the numbers of the CPUs that run. A kernel often prepares for many more.
func onlineCPUs() ([]int, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, fmt.Errorf("which CPUs run: %w", err)
	}
	cpus, err := parseCPUs(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("which CPUs run: %w", err)
	}
	return cpus, nil
}

// parseCPUs reads the kernel's form of a set of CPUs: "0-3,8".
func parseCPUs(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.Atoi(from)
		if err != nil {
			return nil, fmt.Errorf("CPUs %q: %w", list, err)
		}
		last, err := strconv.Atoi(to)
		if err != nil {
			return nil, fmt.Errorf("CPUs %q: %w", list, err)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
