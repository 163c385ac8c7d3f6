package group

import (
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

func TestLacks(t *testing.T) {
	for name, test := range map[string]struct {
		taken   *Taken
		version string
		want    string // part of the reason; empty: the director has it
	}{
		"an older director does not say":        {nil, "7", ""},
		"nothing yet":                           {&Taken{}, "7", "forwards nothing"},
		"the same version":                      {&Taken{Version: "7"}, "7", ""},
		"a later one":                           {&Taken{Version: "10"}, "9", ""},
		"an earlier one, which is shorter":      {&Taken{Version: "9"}, "10", "has not said"},
		"its set is refused":                    {&Taken{Version: "9", Not: map[int32]string{3: "limits.services is 10"}}, "7", "limits.services"},
		"another set is":                        {&Taken{Version: "9", Not: map[int32]string{4: "limits.services is 10"}}, "7", ""},
		"versions that nobody can put in order": {&Taken{Version: "x"}, "7", ""},
	} {
		if got := test.taken.Lacks(3, test.version); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: it is said to lack it because %q, want %q", name, got, test.want)
		}
	}
}

// A Service with another address or port has other fronts; one with other backends has the same.
func TestFronts(t *testing.T) {
	of := func(vip string, port uint16, protocol model.Protocol, backends int) uint64 {
		s := model.Service{VIP: netip.MustParseAddr(vip), Protocol: protocol, Port: model.PortRange{First: port, Last: port}, Backends: make([]model.Backend, backends)}
		return Fronts([]model.Document{{Service: s}})
	}
	is := of("203.0.113.1", 80, model.TCP, 1)
	if is != of("203.0.113.1", 80, model.TCP, 2) {
		t.Error("with one backend more it is reached at something else")
	}
	for name, other := range map[string]uint64{"address": of("203.0.113.2", 80, model.TCP, 1), "port": of("203.0.113.1", 81, model.TCP, 1), "protocol": of("203.0.113.1", 80, model.UDP, 1), "nothing": Fronts(nil)} {
		if is == other {
			t.Errorf("with another %s it is reached at the same", name)
		}
	}
}
