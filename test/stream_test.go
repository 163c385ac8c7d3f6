package test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/traffic"
)

// streamVIPs are the modes of a stream's packets, one VIP each.
var streamVIPs = []struct {
	way   way
	shape traffic.Shape
}{
	{way{mode: "l2dsr"}, traffic.L2DSR},
	{way{mode: "ipip"}, traffic.IPIP},
	{way{mode: "gue"}, traffic.GUE},
	{way{mode: "nat"}, traffic.NAT},
	{way{mode: "nat", snat: true}, traffic.NAT},
}

const (
	streamRate     = 100_000 // packets per second
	streamTogether = 1024    // packets that are sent at once, in batches
	streamBehind   = 32768   // packets that are made up for at once, when the machine is busy
	streamBackends = 3       // of each VIP
	streamBlock    = 8       // addresses for each VIP's backends
)

// stream is UDP through every mode at a rate. Every packet is counted and checked where it arrives.
type stream struct {
	t      *testing.T
	source *traffic.Source
	into   *netlab.Port // of the director; it counts incoming packets
	sinks  []*traffic.Sink
	stop   chan struct{}
	ended  func() // waits until the source has stopped
	sent   uint64
	began  time.Time
	took   time.Duration
}

// newStream adds the source and the sinks to the director of a lab:
//
//	source --- director --- sink (one link for each mode)
//
// The director's interface towards the source is eth1.
func newStream(t *testing.T, l *lab) *stream {
	t.Helper()
	udp := traffic.Traffic{Protocol: model.UDP, Flows: 1000, VIPs: len(streamVIPs), Frames: []int{64}}
	s := &stream{t: t, stop: make(chan struct{}), ended: func() {}}
	host := l.Host("source")
	host.Sysctl("net.ipv6.conf.all.disable_ipv6", "1") // the source sends nothing by itself
	host.Sysctl("net.ipv6.conf.default.disable_ipv6", "1")
	from := l.Link(host, l.director, netlab.LinkOptions{XDP: true, B: []string{"198.18.255.1/16"}})
	sink := l.Host("sink")
	for v, to := range streamVIPs {
		own := traffic.Backend(v*streamBlock+streamBlock-3, false).String() + "/29"
		out := l.Link(l.director, sink, netlab.LinkOptions{XDP: true, A: []string{own}})
		for n := range streamBackends {
			backend := v*streamBlock + n
			l.director.Neighbor(out.A.Name, traffic.Backend(backend, false).String(), traffic.BackendMAC(backend))
		}
		one, err := traffic.NewSink(out.B, traffic.Arrival{Traffic: udp, Shape: to.shape, SNAT: to.way.snat, Backends: len(streamVIPs) * streamBlock})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { one.Close() })
		s.sinks = append(s.sinks, one)
	}
	s.into = from.B
	var err error
	if s.source, err = traffic.NewSource(from.A, from.B.MAC, udp, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.source.Close() })
	return s
}

// services are the services of the stream's packets.
func (s *stream) services() (list []string) {
	for v, to := range streamVIPs {
		list = append(list, streamService(v, to.way))
	}
	return list
}

func streamService(v int, w way) string {
	var b strings.Builder
	fmt.Fprintf(&b, "- name: stream-%s\n  vip: %s\n  protocol: udp\n  port: %d\n  mode: %s\n", w, traffic.VIP(v, false), traffic.Port, w.mode)
	port := ""
	if w.snat {
		b.WriteString("  snat: true\n")
	}
	if w.mode == "nat" {
		port = fmt.Sprintf(", port: %d", traffic.Port)
	}
	b.WriteString("  backends:\n")
	for n := range streamBackends {
		fmt.Fprintf(&b, "  - {name: sink%d, address: %s%s}\n", n, traffic.Backend(v*streamBlock+n, false), port)
	}
	return b.String()
}

// start sends until end is called.
func (s *stream) start() {
	var running sync.WaitGroup
	s.ended = sync.OnceFunc(func() {
		close(s.stop)
		running.Wait()
	})
	s.t.Cleanup(s.ended) // before the source is closed
	s.began = time.Now()
	running.Go(func() {
		defer func() { s.took = time.Since(s.began) }()
		for {
			select {
			case <-s.stop:
				return
			default:
			}
			due := uint64(time.Since(s.began).Seconds()*streamRate) - s.sent
			if due < streamTogether {
				time.Sleep(time.Millisecond) // a fraction of a batch's time
				continue
			}
			together := min(due, streamBehind) / streamTogether * streamTogether
			if _, err := s.source.Send(int(together)); err != nil {
				s.t.Error(err)
				return
			}
			s.sent += together
		}
	})
}

// arrived is how many packets have reached the sinks.
func (s *stream) arrived() (n uint64) {
	s.t.Helper()
	for _, sink := range s.sinks {
		at, err := sink.Arrived()
		if err != nil {
			s.t.Fatal(err)
		}
		n += at
	}
	return n
}

// came is how many packets have come into the director. Packets that a busy machine loses before
// are not weir's loss.
func (s *stream) came() uint64 {
	s.t.Helper()
	counters, err := s.into.Counters()
	if err != nil {
		s.t.Fatal(err)
	}
	return counters.RxPackets
}

// wantAll ends the stream, and claims that every packet has arrived as it must.
func (s *stream) wantAll() {
	s.t.Helper()
	s.ended()
	waitFor(s.t, "every packet that came into the director to leave it", func() bool { return s.arrived() >= s.came() })
	for v, sink := range s.sinks {
		count, err := sink.Count()
		if err != nil {
			s.t.Errorf("%s: %v", streamVIPs[v].way, err)
		}
		if count.Packets == 0 {
			s.t.Errorf("%s: no packet has arrived", streamVIPs[v].way)
		}
	}
	if came, arrived := s.came(), s.arrived(); came != arrived || came == 0 {
		s.t.Errorf("of %d packets %d arrived", came, arrived)
	}
	s.t.Logf("%d packets in %v: %.0f per second", s.sent, s.took.Round(time.Second), float64(s.sent)/s.took.Seconds())
}
