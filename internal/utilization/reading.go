package utilization

import (
	"fmt"
	"time"
)

// Reading is what has been counted until some moment.
type Reading struct {
	at        time.Time
	counted   time.Duration         // how long, pauses not included
	cpus      []int                 // those that run
	overhead  map[int]time.Duration // by CPU: time in polls without packets
	instances map[instance]polls
}

// instance is a NAPI instance on a CPU.
type instance struct {
	cpu  int
	napi uint64
}

// Read returns what has been counted until now.
func (m *Meter) Read() (Reading, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var processors []bpfProcessor // of every possible CPU
	if err := m.kernel.Processors.Lookup(uint32(0), &processors); err != nil {
		return Reading{}, fmt.Errorf("read the packet work of the CPUs: %w", err)
	}
	now := time.Now()
	r := Reading{at: now, counted: m.counted, cpus: m.online, overhead: map[int]time.Duration{}, instances: map[instance]polls{}}
	if m.links != nil {
		r.counted += now.Sub(m.started)
	}
	for _, cpu := range m.online {
		r.overhead[cpu] = time.Duration(processors[cpu].Overhead)
		for _, i := range processors[cpu].Instances {
			if i.Napi != 0 {
				r.instances[instance{cpu: cpu, napi: i.Napi}] = pollsOf(i)
			}
		}
	}
	return r, nil
}

// Between returns the work of each CPU from one reading to a later one: shares are of the time
// during which it counted.
func Between(from, to Reading) []CPU {
	sums := map[int]*sum{}
	for _, cpu := range to.cpus {
		sums[cpu] = &sum{overhead: to.overhead[cpu] - from.overhead[cpu]}
	}
	for i, untilNow := range to.instances {
		if s := sums[i.cpu]; s != nil {
			s.add(untilNow.since(from.instances[i]), untilNow)
		}
	}
	work := make([]CPU, len(to.cpus))
	for n, cpu := range to.cpus {
		work[n] = sums[cpu].of(to.counted - from.counted)
		work[n].Number = cpu
	}
	return work
}
