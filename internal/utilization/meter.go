package utilization

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
)

// Meter counts the packet work of every CPU while it is open. Nothing of it is
// pinned: it goes with its process.
type Meter struct {
	kernel bpfObjects
	links  []link.Link // the collector would detach them, were they not kept
	online []int       // CPUs, when it was opened
}

// Open begins to count. The error names what this kernel or process may not do.
func Open() (*Meter, error) {
	m, err := load()
	if err != nil {
		return nil, err
	}
	if err := m.attach(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func load() (*Meter, error) {
	online, err := onlineCPUs()
	if err != nil {
		return nil, err
	}
	// Before Linux 5.11 memory of maps was limited so; without the right to lift it
	// the loader says what is missing.
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

// Close ends the counting.
func (m *Meter) Close() error {
	var errs []error
	for _, l := range m.links {
		errs = append(errs, l.Close())
	}
	if err := errors.Join(append(errs, m.kernel.Close())...); err != nil {
		return fmt.Errorf("close the meter of utilization: %w", err)
	}
	return nil
}
