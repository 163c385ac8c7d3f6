package bulk

import (
	"testing"

	"weir.io/weir/lab/netlab"
)

// Every subject's bytes reach its backend, in segments of the same size, and the times of both
// parts are measured.
func TestMeasure(t *testing.T) {
	t.Chdir("../..") // where bin/weir is
	b, err := New(t.Context(), netlab.ForTest(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range Subjects {
		const bytes = 20_000_000
		r, err := b.Measure(t.Context(), s, bytes)
		switch {
		case err != nil:
			t.Errorf("%s: %v", s.Name, err)
		case r.Bytes < bytes-4<<20: // what was in buffers is not counted
			t.Errorf("%s: %d of %d bytes arrived", s.Name, r.Bytes, bytes)
		case r.Segment != 1448:
			t.Errorf("%s: segments of %d bytes, want 1448: 1500 less headers and time stamps", s.Name, r.Segment)
		case r.NAPI <= 0 || r.Server <= 0:
			t.Errorf("%s: the uplink's thread ran for %v and the server for %v", s.Name, r.NAPI, r.Server)
		}
	}
}
