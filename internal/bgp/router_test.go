package bgp

import (
	"bytes"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"

	"weir.io/weir/internal/model"
)

// writer is a function that takes each line of a log.
type writer func(line []byte)

func (w writer) Write(line []byte) (int, error) {
	w(line)
	return len(line), nil
}

// Hosts of a link that advertise themselves as routers in turns make no line of the log, and no new
// neighbor for BFD, with each packet: the one that was found first has its time to answer.
func TestRoutersInTurns(t *testing.T) {
	var found atomic.Int32
	calls := make(chan map[string]netip.Addr, 1<<12)
	s := New(func(routers map[string]netip.Addr) { calls <- routers }, slog.New(slog.NewTextHandler(writer(func(line []byte) {
		if bytes.Contains(line, []byte("BGP router found")) {
			found.Add(1)
		}
	}), nil)))
	defer s.Close()
	const name = "not-there"
	s.Set(model.BGP{ASN: 64512, RouterID: netip.MustParseAddr("192.0.2.1"), Neighbors: []model.BGPNeighbor{{Interface: name, ASN: 64513}}}, nil)
	s.mu.Lock()
	d := s.discoveries[name]
	s.mu.Unlock()
	routers := []netip.Addr{netip.MustParseAddr("fe80::1%not-there"), netip.MustParseAddr("fe80::2%not-there")}
	for i := range 1000 {
		s.note(d, name, routers[i%len(routers)], nil)
	}
	if lines := found.Load(); lines != 1 {
		t.Errorf("%d lines of the log say that a router was found, want 1", lines)
	}
	others := 0
	for len(calls) > 0 {
		if at := (<-calls)[name]; at.IsValid() && at != routers[0] {
			others++
		}
	}
	if others > 0 {
		t.Errorf("BFD is told %d times of another router than the first", others)
	}
}
