package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"weir.io/weir/bench/track"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

var (
	// loss is recorded only if there is any.
	loss = record.Quantity{Name: "loss", Unit: "1", Better: record.Lower}
	// busyShare is the balancer's part of the source's core at a rate. It is recorded only if that rate was sent.
	busyShare = record.Quantity{Name: "load", Unit: "1", Better: record.Lower}
)

// rateKept is the part of a rate that must have been sent.
const rateKept = 0.98

// course is a set of measurements on tracks side by side, of which one is used at a time.
type course struct {
	session *session
	lanes   []*lane
	tracks  map[string]*track.Track // lanes that differ in flows and frames share one
	begin   func() error            // is called when the tracks are there; nil: nothing is
	each    func()                  // measures something else in each round; nil: nothing
	sustain bool                    // flows are sustained before they are measured
}

// lane is a stream that is measured once per round.
type lane struct {
	track.Options
	name   string // the subject's
	at     record.Conditions
	direct *lane                     // what source and sink take by themselves; nil: no cost is derived
	rate   float64                   // packets per second that are sent; 0: as many as possible
	before func(*track.Stream) error // each sample begins with it
	sends  bool                      // the source's core is measured, by what it sends, without the time that it waits: others do the rest
	loads  bool                      // only the load is recorded
	stream *track.Stream
	last   track.Sample
	lost   []float64 // of each round, on one core: on two the source may be faster than the balancer
}

// add adds a subject, which is measured after all earlier ones. The balancer's own cost is what is
// left after subtracting the time of direct, on one core and under conditions that are among these.
func (c *course) add(o track.Options, at record.Conditions) *lane {
	l := &lane{Options: o, name: o.Subject.Name, at: maps.Clone(at), before: (*track.Stream).Open}
	for _, other := range slices.Backward(c.lanes) {
		if l.direct == nil && other.Subject.Name == track.Direct.Name && other.at.HoldIn(at) && !o.TwoCores {
			l.direct = other
		}
	}
	c.lanes = append(c.lanes, l)
	return l
}

// run measures all lanes in rounds.
func (c *course) run(ctx context.Context) error {
	if err := c.build(ctx); err != nil {
		return err
	}
	c.session.say("  %d streams on %d tracks", len(c.lanes), len(c.tracks))
	if c.sustain {
		var streams []*track.Stream
		for _, l := range c.lanes {
			streams = append(streams, l.stream)
		}
		if err := track.Sustain(streams...); err != nil {
			return err
		}
	}
	if c.begin != nil {
		if err := c.begin(); err != nil {
			return err
		}
	}
	var steps []func(context.Context) error
	for _, l := range c.lanes {
		steps = append(steps, func(context.Context) error { return l.measure(c.session) })
	}
	if c.each != nil {
		steps = append(steps, func(context.Context) error { c.each(); return nil })
	}
	if err := c.session.inRounds(ctx, steps...); err != nil {
		return err
	}
	for _, l := range c.lanes {
		if len(l.lost) == 0 || slices.Max(l.lost) == 0 {
			continue
		}
		for _, lost := range l.lost {
			c.session.add(l.name, l.at, loss, lost)
		}
	}
	return nil
}

// key names the track that a lane is on.
func (l *lane) key() string {
	flows := 0
	if l.Steered > 0 {
		flows = l.Traffic.Flows // of which some have rules
	}
	return fmt.Sprint(flows, l.Subject.Name, l.Traffic.Protocol, l.Traffic.IPv6, l.Traffic.VLAN, l.Traffic.Overlay, l.Traffic.VIPs, l.Backends, l.TwoCores, l.OneArm, l.Shared, l.FlowRoom, l.Older, l.Steered, l.SourceCPU, l.FanOut, l.Unseen)
}

// build makes the tracks, each for the most flows of its lanes, and the streams.
func (c *course) build(ctx context.Context) (err error) {
	c.tracks = map[string]*track.Track{}
	for _, l := range c.lanes {
		key := l.key()
		if c.tracks[key] == nil {
			o := l.Options
			for _, other := range c.lanes {
				if other.key() == key {
					o.Traffic.Flows = max(o.Traffic.Flows, other.Traffic.Flows)
				}
			}
			if c.tracks[key], err = track.Start(ctx, o); err != nil {
				delete(c.tracks, key)
				return err
			}
			c.session.atEnd(c.tracks[key].Close) // the last one first: each restores what it changed
		}
		if l.stream, err = c.tracks[key].Stream(l.Traffic); err != nil {
			return err
		}
	}
	return nil
}

func (l *lane) measure(s *session) (err error) {
	if err := l.before(l.stream); err != nil {
		return fmt.Errorf("%v: %w", l.at, err)
	}
	if l.rate > 0 {
		together := traffic.FewFrames
		if l.sends {
			together = traffic.FullPoll
		}
		l.last, err = l.stream.MeasureAt(l.rate, together, s.sample())
	} else {
		l.last, err = l.stream.Measure(s.sample())
	}
	if err != nil {
		return fmt.Errorf("%v: %w", l.at, err)
	}
	if !l.loads {
		s.add(l.name, l.at, record.Throughput, l.last.Rate)
	}
	if l.direct != nil {
		own := l.took() - l.direct.took()
		if !l.loads {
			s.add(l.name, l.at, record.Cost, own)
		}
		if sent := l.last.Offered(); l.sends && l.rate > 0 && sent > rateKept*l.rate {
			s.add(l.name, l.at, busyShare, own*sent/1e9)
		}
	}
	if !l.TwoCores && (!l.sends || l.rate > 0) {
		l.lost = append(l.lost, l.last.Lost())
	}
	return nil
}

// took is how long each packet of the last sample took.
func (l *lane) took() float64 {
	if l.sends {
		return l.last.Busy()
	}
	return l.last.Nanoseconds()
}
