package datapath

import (
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
)

// TestNestedRanges: the narrowest range has a port, also where its prefixes are
// prefixes of a wider one too, and in whatever order the services come.
func TestNestedRanges(t *testing.T) {
	t.Parallel()
	ranged := func(index uint32, first, last uint16) *service {
		return &service{index: index, key: serviceKey{vip: netip.MustParseAddr("192.0.2.1"), protocol: model.TCP,
			port: model.PortRange{First: first, Last: last}}}
	}
	all, wide, narrow := ranged(1, 0, 0), ranged(2, 1000, 1999), ranged(3, 1000, 1007)
	for _, services := range [][]*service{{all, wide, narrow}, {narrow, wide, all}, {wide, narrow, all}} {
		l := lookupsOf(services)
		for _, p := range narrow.key.prefixes() {
			if l.ranges[p] != narrow.index {
				t.Errorf("ports from %d (%d bits) are of service %d, want the narrowest, %d", p.port, p.bits, l.ranges[p], narrow.index)
			}
		}
	}
}
