package config_test

import (
	"testing"

	"weir.io/weir/internal/config"
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
