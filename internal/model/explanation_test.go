package model

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
)

// A client reads what the director answered, also about a flow whose last packet was just now.
func TestExplanationJSON(t *testing.T) {
	e := Explanation{Interface: "eth0", Frame: Hex{1}, Outcome: OutcomePass, Reason: "pass_local", Flow: &ExplainedFlow{},
		Memory: &ExplainedMemory{State: "established"}, Backend: &ExplainedBackend{State: Active, Backend: netip.MustParseAddrPort("10.0.0.1:0")}}
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var again Explanation
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatalf("%v, of %s", err, text)
	}
	if !reflect.DeepEqual(again, e) {
		t.Errorf("%s is read as %+v", text, again)
	}
}
