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

// polls are sums over the polls of one NAPI instance on one CPU that had packets.
type polls struct {
	count   uint64
	packets uint64
	budget  uint64 // packets, if all of them had been full
	time    time.Duration
	// Sums over the full polls.
	fullPackets uint64
	fullTime    time.Duration
}

func pollsOf(i bpfInstance) polls {
	return polls{
		count: i.Polls, packets: i.Packets, budget: i.Budget, time: time.Duration(i.Time),
		fullPackets: i.FullPackets, fullTime: time.Duration(i.FullTime),
	}
}

// since returns what was counted after an earlier reading. An instance that counts less than it did
// is a new one at the same address: all its counts are new.
func (p polls) since(before polls) polls {
	if p.count < before.count {
		return p
	}
	return polls{
		count: p.count - before.count, packets: p.packets - before.packets,
		budget: p.budget - before.budget, time: p.time - before.time,
		fullPackets: p.fullPackets - before.fullPackets, fullTime: p.fullTime - before.fullTime,
	}
}

// needed returns how long the packets would have taken had all polls been full. The full polls
// until now show what a packet takes then. Without any it is not known, and the time counts as it
// is.
func (p polls) needed(untilNow polls) time.Duration {
	if untilNow.fullPackets == 0 {
		return p.time
	}
	packet := float64(untilNow.fullTime) / float64(untilNow.fullPackets)
	return min(p.fullTime+time.Duration(packet*float64(p.packets-p.fullPackets)), p.time)
}
