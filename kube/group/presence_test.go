package group

import (
	"fmt"
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
		if got := test.taken.Lacks(3, "x/web", test.version); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
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

func TestPresence(t *testing.T) {
	for _, p := range []Presence{
		{Node: "node-a", Addresses: []string{"10.0.0.1", "2001:db8::1"}, Unfit: "it is cordoned"},
		{Node: "ip-10-0-0-1.eu.example.org"},
		{Node: "1"},
	} {
		got, err := ReadPresence("edge", LeaseName("edge", p.Node), p.String())
		if fmt.Sprint(got) != fmt.Sprint(p) || err != nil {
			t.Errorf("%s is read as %+v, %v", p, got, err)
		}
	}
	// A sidecar of a later version says more.
	if p, err := ReadPresence("edge", LeaseName("edge", "node-a"), `{"node": "node-a", "since": {"a": 1}, "taken": {"version": "7", "more": []}}`); err != nil || p.Node != "node-a" || p.Taken.Version != "7" {
		t.Errorf("what a later version says is read as %+v, %v", p, err)
	}
	if p, err := ReadAgentPresence(`{"node": "node-a", "since": {"a": 1}}`); err != nil || p.Node != "node-a" {
		t.Errorf("what an agent of a later version says is read as %+v, %v", p, err)
	}
	// A client that may write Leases may write nonsense into them.
	for text, want := range map[string]string{
		"":                      "unexpected end",
		"{}":                    "is the name of no node",
		"[]":                    "cannot unmarshal",
		`{"node": 1}`:           "cannot unmarshal",
		`{"node": "node-b"}`:    "has another Lease",
		`{"node": "Node A"}`:    "is the name of no node",
		`{"node": "../node-a"}`: "is the name of no node",
		`{"node": "` + strings.Repeat("a", 254) + `"}`:                           "is the name of no node",
		`{"node": "node-a", "addresses": ["here"]}`:                              "unable to parse IP",
		`{"node": "node-a", "addresses": ["10.0.0.1/24"]}`:                       "unexpected character",
		`{"node": "node-a", "addresses": ["10.0.0.1", "10.0.0.1"]}`:              "not one of a family",
		`{"node": "node-a", "addresses": ["fd00::1", "fd00::2"]}`:                "not one of a family",
		`{"node": "node-a", "addresses": ["0.0.0.0"]}`:                           "is not the address of a host",
		`{"node": "node-a", "addresses": ["224.0.0.1"]}`:                         "is a multicast address",
		`{"node": "node-a", "addresses": ["127.0.0.1"]}`:                         "is a loopback address",
		`{"node": "node-a", "addresses": "10.0.0.1"}`:                            "cannot unmarshal",
		`{"node": "node-a", "addresses": ["::ffff:10.0.0.1"]}`:                   "IPv6 clothing",
		`{"node": "node-a", "addresses": ["fe80::1%eth0"]}`:                      "has a zone",
		`{"node": "node-a", "addresses": ["` + strings.Repeat("1", 9999) + `"]}`: "unable to parse IP",
	} {
		if p, err := ReadPresence("edge", LeaseName("edge", "node-a"), text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q is read as %+v, %v, want %q", text, p, err, want)
		}
	}
	if _, err := ReadPresence("core", LeaseName("edge", "node-a"), `{"node": "node-a"}`); err == nil {
		t.Error("a Lease of one group is another one's")
	}
}
