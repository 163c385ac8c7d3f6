package model

import (
	"encoding/json"
	"net/netip"
	"testing"
)

// Targets and distinguishers are written as they are read, and have the bytes of RFC 4360 and RFC 4364.
func TestRouteTargets(t *testing.T) {
	for text, want := range map[string]struct {
		target [8]byte
		vni    uint32
	}{
		"65001:5001":       {[8]byte{0, 2, 0xfd, 0xe9, 0, 0, 0x13, 0x89}, 5001},
		"65001:16777215":   {[8]byte{0, 2, 0xfd, 0xe9, 0, 0xff, 0xff, 0xff}, MaxVNI},
		"65001:268440457":  {[8]byte{0, 2, 0xfd, 0xe9, 0x10, 0, 0x13, 0x89}, 5001}, // RFC 8365 5.1.2.1
		"65001:4294967295": {[8]byte{0, 2, 0xfd, 0xe9, 0xff, 0xff, 0xff, 0xff}, 0},
		"4200000001:100":   {[8]byte{2, 2, 0xfa, 0x56, 0xea, 1, 0, 100}, 0},
		"10.0.0.2:65535":   {[8]byte{1, 2, 10, 0, 0, 2, 0xff, 0xff}, 0},
		"1:1":              {[8]byte{0, 2, 0, 1, 0, 0, 0, 1}, 1},
	} {
		var target RouteTarget
		if err := target.UnmarshalText([]byte(text)); err != nil {
			t.Error(text, err)
		}
		again, ok := ReadRouteTarget(want.target)
		if target.Bytes() != want.target || !ok || again != target || target.String() != text || target.VNI() != want.vni {
			t.Errorf("%s: [% x], %v of VNI %d", text, target.Bytes(), again, target.VNI())
		}
		distinguisher := want.target
		distinguisher[0], distinguisher[1] = 0, distinguisher[0]
		if d := DistinguisherOf(distinguisher); d.String() != text || d.Bytes() != distinguisher {
			t.Errorf("the distinguisher %s is %v", text, d)
		}
	}
	for _, text := range []string{"", "1", ":", "1:", ":1", "65536:65536", "10.0.0.2:65536", "4294967296:1", "1:4294967296", "1:1:1", "2001:db8::1:1", "-1:1", "0x1:1"} {
		if err := new(RouteTarget).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is a target", text)
		}
	}
	for _, other := range [][8]byte{{3, 2}, {0, 3}, {0x40, 2}, {6, 0}} {
		if target, ok := ReadRouteTarget(other); ok {
			t.Errorf("[% x] is the target %v", other, target)
		}
	}
	if got := NewRouteTarget(65001, 5001).String() + " " + NewRouteTarget(4200000001, 7).String() + " " + NewRouteDistinguisher(netip.MustParseAddr("10.0.0.2"), 9).String(); got != "65001:5001 4200000001:7 10.0.0.2:9" {
		t.Error(got)
	}
}

// What is set can be written and read again.
func TestEVPNIsWritten(t *testing.T) {
	const text = `{"segments":[{"vni":5001,"vtep":"10.0.0.2","rd":"10.0.0.2:1","import":["65001:5001"],"entries":[{"mac":"02:00:00:00:00:01"},{"mac":"02:00:00:00:00:01","ip":"2001:db8::1","sequence":3}]}]}`
	var e EVPN
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	if again, err := json.Marshal(e); err != nil || string(again) != text {
		t.Errorf("%s, %v", again, err)
	}
}
