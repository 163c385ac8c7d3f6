package bfd

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// Why a session's packets are refused is one sentence, whatever TTL somebody sends them with: each
// other sentence would be another problem, event and line of the log.
func TestStrangersChooseNoSentence(t *testing.T) {
	now := time.Unix(1e9, 0)
	want := model.BFDSession{Neighbor: netip.MustParseAddr("192.0.2.1"), Timers: model.BFDTimers{Interval: model.Duration(ms(50)), Multiplier: 3}}
	s := newSession(now, want, 7, rand.New(rand.NewPCG(1, 1)))
	sentences := map[string]bool{}
	for ttl := range 255 {
		if why := s.take(now, Packet{State: Down, Multiplier: 3, Mine: 9}, &arrival{ttl: ttl}); why != DiscardTTL {
			t.Fatalf("a packet with TTL %d is taken as %v", ttl, why)
		}
		sentences[s.refused] = true
	}
	if len(sentences) != 1 {
		t.Errorf("there are %d sentences: %v", len(sentences), sentences)
	}
}
