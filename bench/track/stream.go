package track

import (
	"errors"
	"fmt"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/utilization"
	"weir.io/weir/lab/traffic"
)

// Stream is traffic on a track. A track may have any number of streams, of which one sends at a
// time: so the same balancer is measured with few flows and with many.
type Stream struct {
	track   *Track
	traffic traffic.Traffic
	source  *traffic.Source
	cpu     int     // of the source
	pace    float64 // packets sent per second, as last measured; 0: not yet
	opened  bool
}

// Stream makes a source of traffic that may differ from the track's in the lengths of frames, the
// order of flows and SYNs, or have fewer flows.
func (t *Track) Stream(like traffic.Traffic) (*Stream, error) {
	if like.IPv6 != t.Traffic.IPv6 || like.Protocol != t.Traffic.Protocol || like.VIPs != t.Traffic.VIPs || like.VLAN != t.Traffic.VLAN || like.Overlay != t.Traffic.Overlay || like.Flows > t.Traffic.Flows {
		return nil, fmt.Errorf("%s: traffic %+v is not for the track of %+v", t.Subject.Name, like, t.Traffic)
	}
	s := &Stream{track: t, traffic: like, cpu: t.SourceCPU}
	var err error
	s.source, err = t.newSourceOn(like, s.cpu)
	return s, err
}

func (t *Track) newSourceOn(of traffic.Traffic, cpu int) (*traffic.Source, error) {
	source, err := traffic.NewSource(t.from.A, t.from.B.MAC, of, cpu)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Subject.Name, err)
	}
	t.closers = append(t.closers, source.Close)
	return source, nil
}

// Open sends a packet of each flow to a balancer that remembers flows, one flow after the other, so
// that it knows all of them; the second time it does nothing. Full NAT begins a TCP flow with a
// SYN, and each time anew: nothing answers here, so a flow of another stream may have got the flow's
// place. DNAT picks up a flow that is under way, and would wait for the answer to a SYN. On two
// cores some of the packets may be lost.
func (s *Stream) Open() error {
	if s.opened && !s.track.Subject.SNAT {
		return nil
	}
	return s.begin()
}

// Sustain opens the streams so that a director's flow memory takes their flows for sustained: it
// sees packets of them again after a while.
func Sustain(streams ...*Stream) error {
	for _, s := range streams {
		if err := s.begin(); err != nil {
			return err
		}
	}
	time.Sleep(sustained)
	for _, s := range streams {
		if err := s.begin(); err != nil {
			return err
		}
	}
	return nil
}

// sustained is longer than a flow has to last (PROOF_LASTS in bpf/lib/proof.h), by two units of the
// director's clock.
const sustained = 4500 * time.Millisecond

func (s *Stream) begin() error {
	if !s.track.Subject.remembers {
		return nil
	}
	first := s.traffic
	first.InTurn, first.Zipf, first.SYNEvery = true, 0, 0
	if s.track.Subject.SNAT && first.Protocol == model.TCP {
		first.SYNEvery = 1
	}
	opener, err := s.track.newSourceOn(first, s.cpu)
	if err != nil {
		return err
	}
	if _, err = opener.Send(first.Flows); err == nil {
		_, err = s.track.settled()
	}
	if err != nil {
		return fmt.Errorf("%s: begin %d flows: %w", s.track.Subject.Name, first.Flows, err)
	}
	s.opened = true
	return nil
}

// firstGuess is how many packets are sent to learn how many can be sent.
const firstGuess = 1 << 16

// tries is how often a sample is tried when all of it was sent too soon.
const tries = 20

// late is how late a look may be: a busy machine does not wake threads in time.
const late = 20 * time.Millisecond

// Sample is one uninterrupted measurement.
type Sample struct {
	Sent     uint64
	Received uint64
	Bytes    uint64  // received, of frames without their checksum
	Rate     float64 // packets per second that reached the sink
	Waited   float64 // share of the time that the source waited to send, at a rate
	// Work is the work of the balancer's CPU, with a meter.
	Work utilization.CPU
}

// Nanoseconds returns how long each packet that reached the sink took.
func (s Sample) Nanoseconds() float64 { return 1e9 / s.Rate }

// Busy returns how long the source's CPU worked on each packet that was sent.
func (s Sample) Busy() float64 { return 1e9 * (1 - s.Waited) / s.Offered() }

// Lost returns the share of packets that did not arrive.
func (s Sample) Lost() float64 { return 1 - float64(s.Received)/float64(s.Sent) }

// Offered returns how many packets were sent per second.
func (s Sample) Offered() float64 { return s.Rate / (1 - s.Lost()) }

// Measure sends as much as possible for about that long, and looks at the sink at two moments in
// between: the beginning and the end are not measured. A wrong packet is an error.
func (s *Stream) Measure(length time.Duration) (Sample, error) {
	if s.pace == 0 {
		if _, err := s.measure(firstGuess, time.Millisecond); err != nil {
			return Sample{}, err
		}
	}
	for range tries {
		// A tenth more, because sending must not end before the second look.
		sample, err := s.measure(int(s.pace*length.Seconds()*1.1), length)
		if err != nil || sample.Rate > 0 {
			return sample, err
		}
	}
	return Sample{}, s.tooSoon()
}

// MeasureAt does the same at a rate, in packets per second, of which so many come together.
func (s *Stream) MeasureAt(rate float64, together int, length time.Duration) (Sample, error) {
	if err := s.source.Pace(rate, together); err != nil {
		return Sample{}, err
	}
	pace := s.pace
	defer func() { s.pace = pace }()
	freely := func() error { return s.source.Pace(0, traffic.FullPoll) }
	for range tries {
		sample, err := s.measure(int(rate*(length+length/10+late).Seconds()), length)
		if err != nil || sample.Rate > 0 {
			return sample, errors.Join(err, freely())
		}
	}
	return Sample{}, errors.Join(s.tooSoon(), freely())
}

func (s *Stream) tooSoon() error {
	return fmt.Errorf("%s: all of %d pieces were sent too soon", s.track.Subject.Name, tries)
}

// Measure measures all of the traffic, see [Stream.Measure].
func (t *Track) Measure(length time.Duration) (Sample, error) { return t.main.Measure(length) }

// MeasureAt does the same at a rate, see [Stream.MeasureAt].
func (t *Track) MeasureAt(rate float64, length time.Duration) (Sample, error) {
	return t.main.MeasureAt(rate, traffic.FewFrames, length)
}

// measure sends that many packets. The rate is 0 if they were too few to see it.
func (s *Stream) measure(packets int, length time.Duration) (Sample, error) {
	t := s.track
	before, err := t.sink.Count()
	if err != nil {
		return Sample{}, fmt.Errorf("%s: %w", t.Subject.Name, err)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := s.source.Send(packets)
		sent <- err
	}()
	sample, err := s.watch(before.Packets, length, sent)
	watched := time.Now()
	if err := errors.Join(err, <-sent); err != nil {
		return Sample{}, fmt.Errorf("%s: %w", t.Subject.Name, err)
	}
	s.learn(packets, sample.Rate, length, time.Since(watched))
	after, err := t.settled()
	if err != nil {
		return Sample{}, fmt.Errorf("%s: %w", t.Subject.Name, err)
	}
	if after.Packets == before.Packets {
		return Sample{}, fmt.Errorf("%s: none of %d packets arrived", t.Subject.Name, packets)
	}
	sample.Sent, sample.Received, sample.Bytes = uint64(packets), after.Packets-before.Packets, after.Bytes-before.Bytes
	return sample, nil
}

// learn works out the pace from what was sent in a sample of that length and, if its rate was seen,
// in the time after it.
func (s *Stream) learn(packets int, rate float64, length, longer time.Duration) {
	switch {
	case rate == 0:
		s.pace = 1.5 * float64(packets) / length.Seconds()
	case !s.track.TwoCores && s.pace == 0:
		s.pace = 1.3 * rate // the caches were cold
	case !s.track.TwoCores:
		s.pace = rate
	case s.pace == 0 || longer > length:
		// The source may be faster than what arrives, by an unknown amount: the kernel takes a
		// while to end a run.
		s.pace = max(rate, float64(packets)/(length+longer).Seconds())
	}
}

// watch looks at source and sink when packets arrive, and that long after. The rate is 0 if sending ended
// before that time was over.
func (s *Stream) watch(before uint64, length time.Duration, sent chan error) (sample Sample, err error) {
	begin, err := s.look()
	for err == nil && begin.arrived == before && len(sent) == 0 {
		time.Sleep(100 * time.Microsecond) // between two looks
		begin, err = s.look()
	}
	if err != nil {
		return Sample{}, err
	}
	time.Sleep(length) // the measured time
	end, err := s.look()
	if err != nil {
		return Sample{}, err
	}
	if len(sent) == 0 {
		took := end.at.Sub(begin.at)
		sample.Rate = float64(end.arrived-begin.arrived) / took.Seconds()
		sample.Waited = (end.waited - begin.waited).Seconds() / took.Seconds()
	}
	if s.track.Meter != nil {
		sample.Work = utilization.Between(begin.work, end.work)[BalancerCPU]
	}
	return sample, nil
}

// look looks at source and sink.
func (s *Stream) look() (look, error) {
	waited, err := s.source.Waited()
	if err != nil {
		return look{}, err
	}
	l, err := s.track.look()
	l.waited = waited
	return l, err
}

type look struct {
	at      time.Time
	arrived uint64
	waited  time.Duration       // of a stream
	work    utilization.Reading // with a meter
}

func (t *Track) look() (l look, err error) {
	if t.Meter != nil {
		if l.work, err = t.Meter.Read(); err != nil {
			return look{}, err
		}
	}
	l.arrived, err = t.sink.Arrived()
	l.at = time.Now()
	return l, err
}

// settled returns what has arrived once nothing arrives any more.
func (t *Track) settled() (traffic.Count, error) {
	for last := uint64(0); ; time.Sleep(time.Millisecond) { // between two looks
		now, err := t.look()
		if err != nil {
			return traffic.Count{}, err
		}
		if now.arrived == last {
			return t.sink.Count()
		}
		last = now.arrived
	}
}
