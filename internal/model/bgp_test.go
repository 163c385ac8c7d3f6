package model_test

import (
	"fmt"
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
)

func TestCommunities(t *testing.T) {
	for text, want := range map[string]model.Community{
		"65000:100":               {Parts: [3]uint32{65000, 100}},
		"0:0":                     {},
		"4200000000:4294967295:0": {Large: true, Parts: [3]uint32{4200000000, 4294967295, 0}},
		"no-export":               {Parts: [3]uint32{65535, 65281}},
		"graceful-shutdown":       {Parts: [3]uint32{65535, 0}},
	} {
		var got model.Community
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%s is read as %+v (%v), want %+v", text, got, err, want)
		}
		if got.String() != text {
			t.Errorf("%s is written as %s", text, got)
		}
	}
	var c model.Community
	if err := c.UnmarshalText([]byte("65535:65282")); err != nil || c.String() != "no-advertise" {
		t.Errorf("65535:65282 is written as %s (%v)", c, err)
	}
	for _, text := range []string{"", "1", "65536:1", "1:65536", "1:2:3:4", "1:2:4294967296", "a:b", "-1:1", "1:", ":", "1:2:"} {
		if err := c.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is read as %v", text, c)
		}
	}
}

func TestAttributesOverOthers(t *testing.T) {
	number := func(n uint32) *uint32 { return &n }
	one := model.Community{Parts: [3]uint32{1, 1}}
	two := model.Community{Parts: [3]uint32{1, 2}}
	neighbor := model.BGPAttributes{Communities: []model.Community{two}, LocalPref: number(5), MED: number(6), Prepend: 2}
	for name, test := range map[string]struct {
		prefix model.BGPAttributes
		want   string
	}{
		"none of its own": {model.BGPAttributes{}, "[1:2] 5 6 2"},
		"all of its own": {model.BGPAttributes{Communities: []model.Community{two, one}, LocalPref: number(0), MED: number(1), Prepend: 3},
			"[1:1 1:2] 0 1 3"},
	} {
		a := test.prefix.Over(neighbor)
		if got := fmt.Sprintf("%v %d %d %d", a.Communities, *a.LocalPref, *a.MED, a.Prepend); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	if fmt.Sprint(neighbor.Communities) != "[1:2]" {
		t.Errorf("the neighbor's have become %v", neighbor.Communities)
	}
}

// All that there is can be announced not at all, and in no other way.
func TestPrefixOfAll(t *testing.T) {
	for announce, wrong := range map[model.Announce]bool{model.AnnounceNothing: false, model.AnnounceHosts: true, model.AnnouncePrefix: true} {
		c := model.Config{Director: model.Director{Interfaces: []string{"eth0"}}, BGP: model.BGP{ASN: 65001, RouterID: netip.MustParseAddr("10.0.0.2"),
			Neighbors: []model.BGPNeighbor{{Address: netip.MustParseAddr("10.0.0.1"), ASN: 65000}}}}
		for _, text := range []string{"0.0.0.0/0", "::/0"} {
			c.BGP.Prefixes = append(c.BGP.Prefixes, model.BGPPrefix{Prefix: netip.MustParsePrefix(text), Announce: announce})
		}
		c.SetDefaults()
		if err := c.Validate(); (err != nil) != wrong {
			t.Errorf("to announce %s of all prefixes is valid with error %v", announce, err)
		}
	}
}
