package track

import (
	"errors"
	"fmt"
	"time"

	"weir.io/weir/lab/traffic"
)

// Parallel is traffic that several CPUs send at once. Each sends by its own receive queue of the balancer, and
// does all that its packets need: so its queue is its alone, as where each queue's interrupt has a CPU.
type Parallel struct {
	track   *Track
	streams []*Stream // by CPU
	shares  []float64
	pace    float64 // packets per second, as last measured; 0: not yet
}

// Parallel makes a source for each of the shares that CPUs have of the packets. The flows are theirs in equal
// parts.
func (t *Track) Parallel(like traffic.Traffic, shares []float64) (*Parallel, error) {
	if len(shares) > max(t.CPUs, 1) || len(shares) > like.Flows {
		return nil, fmt.Errorf("%s: %d CPUs are to send %d flows, and the track is for %d CPUs", t.Subject.Name, len(shares), like.Flows, t.CPUs)
	}
	p := &Parallel{track: t, shares: shares}
	each := like.Flows / len(shares)
	for cpu := range shares {
		part := like
		part.First, part.Flows = like.First+cpu*each, each
		s := &Stream{track: t, traffic: part, cpu: t.SourceCPU + cpu}
		var err error
		if s.source, err = t.newSourceOn(part, s.cpu); err != nil {
			return nil, err
		}
		p.streams = append(p.streams, s)
	}
	return p, nil
}

// Open sends a packet of each flow to a balancer that remembers flows, see [Stream.Open].
func (p *Parallel) Open() error {
	for _, s := range p.streams {
		if err := s.Open(); err != nil {
			return err
		}
	}
	return nil
}

// Measure sends for about that long. All CPUs begin at once, and the rate is that until the last one is done:
// with uneven shares it is the one with the largest.
func (p *Parallel) Measure(length time.Duration) (Sample, error) {
	if p.pace == 0 {
		if _, err := p.send(firstGuess); err != nil {
			return Sample{}, err
		}
	}
	return p.send(p.pace * length.Seconds())
}

func (p *Parallel) send(packets float64) (Sample, error) {
	t := p.track
	before, err := t.sink.Count()
	if err != nil {
		return Sample{}, fmt.Errorf("%s: %w", t.Subject.Name, err)
	}
	type end struct {
		took time.Duration
		err  error
	}
	start, ends := make(chan struct{}), make(chan end)
	sent := 0
	for i, s := range p.streams {
		part := max(int(p.shares[i]*packets), 1<<10)
		sent += part
		go func() {
			<-start
			took, err := s.source.Send(part)
			ends <- end{took, err}
		}()
	}
	close(start)
	var errs []error
	var longest time.Duration
	for range p.streams {
		e := <-ends
		errs, longest = append(errs, e.err), max(longest, e.took)
	}
	if err := errors.Join(errs...); err != nil {
		return Sample{}, fmt.Errorf("%s: %w", t.Subject.Name, err)
	}
	after, err := p.settled()
	if err != nil {
		return Sample{}, fmt.Errorf("%s: %w", t.Subject.Name, err)
	}
	sample := Sample{Sent: uint64(sent), Received: after.Packets - before.Packets, Bytes: after.Bytes - before.Bytes}
	if sample.Received == 0 {
		return Sample{}, fmt.Errorf("%s: none of %d packets arrived", t.Subject.Name, sent)
	}
	sample.Rate = float64(sample.Received) / longest.Seconds()
	p.pace = sample.Rate
	return sample, nil
}

// settled returns what has arrived once nothing arrives any more.
func (p *Parallel) settled() (traffic.Count, error) {
	for last := uint64(0); ; time.Sleep(time.Millisecond) { // between two looks
		now, err := p.track.sink.Count()
		if err != nil || now.Packets == last {
			return now, err
		}
		last = now.Packets
	}
}
