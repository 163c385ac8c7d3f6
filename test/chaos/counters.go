package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// counters follows how directors and agents count packets of unusual fate: drops, second chances,
// and the like.
type counters struct {
	group   *group
	samples []counterSample
	last    map[string]map[string]uint64 // by host
}

// counterSample is what was counted since the previous sample, by host and reason.
type counterSample struct {
	at    time.Time
	grown map[string]map[string]uint64
}

// samplePause is the time between two samples.
const samplePause = time.Second

// follow takes samples until the context ends.
func (c *counters) follow(ctx context.Context) {
	c.last = map[string]map[string]uint64{}
	for {
		c.sample(context.WithoutCancel(ctx))
		if !sleep(ctx, samplePause) {
			c.sample(context.WithoutCancel(ctx))
			return
		}
	}
}

func (c *counters) sample(ctx context.Context) {
	s := counterSample{at: time.Now(), grown: map[string]map[string]uint64{}}
	for host, socket := range c.group.directorSockets() {
		// A director that is being ended does not answer; its next sample has everything.
		if status, err := api.NewClient(socket).Status(ctx); err == nil {
			c.note(s, host, slices.Concat(status.Reasons, asCounters(status.QUIC)))
		}
	}
	for host, socket := range c.group.agentSockets() {
		if status, err := api.NewClient(socket).AgentStatus(ctx); err == nil {
			c.note(s, host, status.Reasons)
		}
	}
	c.samples = append(c.samples, s)
}

// asCounters returns the counts of connection IDs as reasons.
func asCounters(list []model.Tallied) []model.Counter {
	var counters []model.Counter
	for _, t := range list {
		counters = append(counters, model.Counter{Name: t.Name, Packets: t.Count})
	}
	return counters
}

// note adds the growth of a host's counters. Counters that have shrunk are those of a host that has
// restarted.
func (c *counters) note(s counterSample, host string, reasons []model.Counter) {
	now, before := map[string]uint64{}, c.last[host]
	_, again := c.last[host]
	for _, r := range reasons {
		if !special(r.Name) {
			continue
		}
		now[r.Name] = r.Packets
		grown := r.Packets
		if r.Packets >= before[r.Name] {
			grown -= before[r.Name]
		}
		if grown > 0 && again {
			if s.grown[host] == nil {
				s.grown[host] = map[string]uint64{}
			}
			s.grown[host][r.Name] = grown
		}
	}
	c.last[host] = now
}

// special reports whether ordinary traffic does not cause a reason. A refusal of an agent is
// special; other packets that a host gets are not.
func special(reason string) bool {
	return strings.HasPrefix(reason, "drop_") || strings.HasPrefix(reason, "answer_") ||
		slices.Contains([]string{"passed_on", "decap_last_resort", "pass_unknown_source", "pass_malformed", "forward_icmp_error", "quic_unknown", "quic_down"}, reason)
}

// between returns what was counted around a time, as "host reason".
func (c *counters) between(from, until time.Time) map[string]uint64 {
	sum := map[string]uint64{}
	if c == nil {
		return sum
	}
	for i, s := range c.samples {
		// A sample has what happened since the previous one.
		if s.at.Before(from) || i > 0 && c.samples[i-1].at.After(until) {
			continue
		}
		for host, reasons := range s.grown {
			for reason, n := range reasons {
				sum[host+" "+reason] += n
			}
		}
	}
	return sum
}

// totals returns the counts of all hosts together, by reason.
func (c *counters) totals() map[string]uint64 {
	sum := map[string]uint64{}
	if c == nil {
		return sum
	}
	for _, s := range c.samples {
		for _, reasons := range s.grown {
			for reason, n := range reasons {
				sum[reason] += n
			}
		}
	}
	return sum
}
