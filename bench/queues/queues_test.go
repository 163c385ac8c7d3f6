package queues

import (
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/netlab"
)

// A server answers one request at a time: of those that come together the last one waits for
// all others.
func TestRequestsQueue(t *testing.T) {
	host := netlab.ForTest(t).Host("host")
	const service, requests = 5 * time.Millisecond, 20
	s, err := newServers(service)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort("127.0.0.1:8000")
	if err := s.add(host, at); err != nil {
		t.Fatal(err)
	}
	go s.run()
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	// All of them within a moment that is short beside their service.
	r, err := run(host, at, Load{Rate: requests / service.Seconds() * 20, Duration: service / 20, Request: []byte{answerByte}, Seed: 1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	// The last of n has waited for n-1, and was served; it came after the first one.
	if least := time.Duration(r.Requests-2) * service; r.Requests < 2 || r.P99 < least {
		t.Errorf("of %d requests that came together one took %v at most, want %v at least", r.Requests, r.P99, least)
	}
}

func TestQuantile(t *testing.T) {
	times := make([]time.Duration, 200)
	for i := range times {
		times[i] = time.Duration(i + 1)
	}
	if p50, p99 := quantile(times, 50), quantile(times, 99); p50 != 100 || p99 != 198 {
		t.Errorf("p50 %d, p99 %d of 1 to 200, want 100 and 198", p50, p99)
	}
}
