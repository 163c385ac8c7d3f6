package track

import (
	"fmt"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/traffic"
)

// Stream is traffic on a track. A track may have any number of streams, of which one sends at a
// time: so the same balancer is measured with few flows and with many.
type Stream struct {
	track   *Track
	traffic traffic.Traffic
	source  *traffic.Source
	pace    float64 // packets sent per second, as last measured; 0: not yet
	opened  bool
}

// Stream makes a source of traffic that may differ from the track's in the lengths of frames, the
// order of flows and SYNs, or have fewer flows.
func (t *Track) Stream(like traffic.Traffic) (*Stream, error) {
	if like.IPv6 != t.Traffic.IPv6 || like.Protocol != t.Traffic.Protocol || like.VIPs != t.Traffic.VIPs || like.Flows > t.Traffic.Flows {
		return nil, fmt.Errorf("%s: traffic %+v is not for the track of %+v", t.Subject.Name, like, t.Traffic)
	}
	s := &Stream{track: t, traffic: like}
	var err error
	s.source, err = t.newSource(like)
	return s, err
}

func (t *Track) newSource(of traffic.Traffic) (*traffic.Source, error) {
	source, err := traffic.NewSource(t.from.A, t.from.B.MAC, of, sourceCPU)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Subject.Name, err)
	}
	t.closers = append(t.closers, source.Close)
	return source, nil
}

// Open sends a packet of each flow to a balancer that remembers flows, one flow after the other, so
// that it knows all of them; the second time it does nothing. Full NAT begins a TCP flow with a
// SYN. DNAT picks up a flow that is under way, and would wait for the answer to a SYN. On two cores
// some of the packets may be lost.
func (s *Stream) Open() error {
	if !s.track.Subject.remembers || s.opened {
		return nil
	}
	first := s.traffic
	first.InTurn, first.SYNEvery = true, 0
	if s.track.Subject.snat && first.Protocol == model.TCP {
		first.SYNEvery = 1
	}
	opener, err := s.track.newSource(first)
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
