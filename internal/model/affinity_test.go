package model_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// An affinity with a prefix is written with it, where logs and reports name what chose slots.
func TestAffinityText(t *testing.T) {
	for text, want := range map[string]model.Affinity{
		"flow": model.AffinityFlow, "source-ip": model.AffinitySourceIP, "destination-port": model.AffinityDestinationPort,
		"source-ip/24/64": model.SourcePrefix(model.AffinityPrefix{V4: 24, V6: 64}),
		"source-ip/1/128": model.SourcePrefix(model.AffinityPrefix{V4: 1, V6: 128}),
	} {
		var got model.Affinity
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want || got.String() != text {
			t.Errorf("%q is read as %v (%v), and written as %q", text, got, err, got.String())
		}
		if again := model.AffinityFrom(got.Kind(), got.Prefix().V4, got.Prefix().V6); again != got {
			t.Errorf("%s comes back from a ring as %s", got, again)
		}
	}
	if all := model.SourcePrefix(model.AffinityPrefix{V4: 32, V6: 128}); all != model.AffinitySourceIP {
		t.Errorf("a prefix of all bits is %s, want source-ip", all)
	}
	for _, text := range []string{"source-ip/24", "source-ip/0/64", "source-ip/33/64", "source-ip/24/129", "source-ip/24/64/1", "source-ip/a/b", "source-ip/ 24/64", "prefix"} {
		var got model.Affinity
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is read as %s", text, got)
		}
	}
}

// Clients of one network have one hash by its prefix, and others another; by the destination port all have one.
func TestAffinityHash(t *testing.T) {
	flow := func(source string, port uint16) model.Flow {
		return model.Flow{Source: netip.MustParseAddr(source), Destination: netip.MustParseAddr("203.0.113.1"), SourcePort: 1000 + port, DestinationPort: 80 + port, Protocol: 6}
	}
	prefix := model.SourcePrefix(model.AffinityPrefix{V4: 24, V6: 64})
	for _, test := range []struct {
		affinity model.Affinity
		a, b     model.Flow
		same     bool
	}{
		{prefix, flow("192.0.2.1", 0), flow("192.0.2.255", 7), true},
		{prefix, flow("192.0.2.1", 0), flow("192.0.3.1", 0), false},
		{prefix, flow("2001:db8::1", 0), flow("2001:db8::ffff:1", 3), true},
		{prefix, flow("2001:db8::1", 0), flow("2001:db8:0:1::1", 0), false},
		{model.SourcePrefix(model.AffinityPrefix{V4: 24, V6: 65}), flow("2001:db8::1", 0), flow("2001:db8::8000:0:0:1", 0), false},
		{model.AffinityDestinationPort, flow("192.0.2.1", 0), flow("198.51.100.9", 0), true},
		{model.AffinityDestinationPort, flow("192.0.2.1", 0), flow("192.0.2.1", 1), false},
		{model.AffinityDestinationPort, flow("192.0.2.1", 0), flow("2001:db8::1", 0), true},
	} {
		if got := test.a.Hash(5, test.affinity) == test.b.Hash(5, test.affinity); got != test.same {
			t.Errorf("by %s the hashes of %v and %v are the same: %v", test.affinity, test.a, test.b, got)
		}
	}
}

// The service's prefix is part of what its generations are placed by, and a document goes back and forth.
func TestAffinityPrefix(t *testing.T) {
	s := model.Service{Name: "web", VIP: netip.MustParseAddr("203.0.113.1"), Protocol: model.TCP, Affinity: model.AffinitySourceIP, AffinityPrefix: model.AffinityPrefix{V4: 24, V6: 64}}
	d := model.Document{Service: s, Log: model.Log{Generations: []model.Generation{{Number: 2, Slots: 53, Affinity: s.PlacedBy()}, {Number: 1, Slots: 53, Affinity: model.AffinityFlow}}}}
	text, err := json.Marshal(d)
	if err != nil || !strings.Contains(string(text), `"affinity-prefix":"24/64"`) || !strings.Contains(string(text), `"affinities":["source-ip/24/64","flow"]`) {
		t.Fatalf("a document is written as %s (%v)", text, err)
	}
	var again model.Document
	if err := json.Unmarshal(text, &again); err != nil || again.Log.Generations[0].Affinity != s.PlacedBy() || again.Log.Generations[1].Affinity != model.AffinityFlow || again.Service.PlacedBy() != s.PlacedBy() {
		t.Errorf("it is read as %+v (%v)", again, err)
	}
}
