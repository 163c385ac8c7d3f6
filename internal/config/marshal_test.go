package config_test

import (
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
)

// TestMarshalUsesJSONNames writes what the command line shows, which embeds.
func TestMarshalUsesJSONNames(t *testing.T) {
	type Inner struct {
		RingMemory uint64 `json:"ring-memory"`
		Empty      string `json:"empty,omitempty"`
	}
	type outer struct {
		Inner `json:",inline"`
		Text  string   `json:"text"`
		List  []string `json:"list"`
	}
	text, err := config.Marshal(outer{Inner: Inner{RingMemory: 1 << 63}, Text: "yes", List: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	if want := "ring-memory: 9223372036854775808\ntext: \"yes\"\nlist: []\n"; string(text) != want {
		t.Errorf("written as\n%s\nwant\n%s", text, want)
	}
}

// TestMarshalWritesAddresses writes one that may be missing, and one that is.
func TestMarshalWritesAddresses(t *testing.T) {
	text, err := config.Marshal([]model.BackendStatus{
		{Name: "a", Address: netip.MustParseAddr("10.244.1.5"), Host: netip.MustParseAddr("10.0.1.11"),
			Health: &model.BackendHealth{To: netip.MustParseAddrPort("10.244.1.5:8080")}},
		{Name: "b", Address: netip.MustParseAddr("10.0.1.12")},
	})
	if err != nil {
		t.Fatal(err)
	}
	for line, times := range map[string]int{"  host: 10.0.1.11\n": 1, "  host: ": 1, "    to: 10.244.1.5:8080\n": 1} {
		if got := strings.Count(string(text), line); got != times {
			t.Errorf("%q is there %d times, want %d:\n%s", line, got, times, text)
		}
	}
}
