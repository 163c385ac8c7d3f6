package test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// Routers that know only AS numbers of 16 bits have sessions, also with a director whose number has
// more: to them it is AS_TRANS, and its own number is beside the path (RFC 6793). (BIRD without 32
// bits reads the whole number anyway, but does not let an operator configure it.)
//
//	client (ExaBGP) --- router (BIRD) --- switch --- director
func TestRoutersWithOldNumbers(t *testing.T) {
	t.Parallel()
	w := way{mode: "l2dsr"}
	l := newAnnouncing(t, 1, 1, "")
	bird := startBIRD(t, l.router, `
log stderr all;
router id 10.2.0.1;
protocol device { scan time 1; }
protocol kernel { ipv4 { import none; export all; }; }
protocol bgp director {
	local 10.2.0.1 as 65000;
	neighbor 10.2.0.11 as 65001;
	enable as4 off;
	hold time 9;
	ipv4 { import all; export none; };
}
`)
	exa := startExaBGP(t, l.client, "10.0.0.2", `
neighbor 10.2.0.11 {
	router-id 10.0.0.2;
	local-address 10.0.0.2;
	local-as 64999;
	peer-as 23456;
	hold-time 30;
	passive;
	capability { asn4 disable; }
	family { ipv4 unicast; }
	api { processes [ log ]; receive { parsed; update; } }
}
`)
	service, prefix := w.service("tcp", "80", everyBackend(1)), w.vip().String()+"/32"
	l.serve(service)
	bgp := func(asn uint32, neighbor string) string {
		return fmt.Sprintf("bgp:\n  asn: %d\n  router-id: 10.2.0.11\n  neighbors:\n  - %s\n", asn, neighbor)
	}
	d := l.direct(0, bgp(65001, "{address: 10.2.0.1, asn: 65000, hold-time: 9s}"), service)
	defer func() {
		if t.Failed() {
			out, _ := bird.Query("show protocols all director")
			updates, _ := exa.Updates()
			t.Logf("BIRD says %s\nExaBGP was told %s\nweir says %+v", out, updates, d.bgp())
		}
	}()
	waitRouted(t, l.router, prefix, "via 10.2.0.11")
	l.answers("of a router with old numbers", w)
	out, err := bird.Query("show route all " + prefix)
	if err != nil || !strings.Contains(out, "BGP.as_path: 65001") {
		t.Errorf("BIRD has the route (%v):\n%s", err, out)
	}
	if n := d.bgp().Neighbors[0]; n.State != model.SessionEstablished {
		t.Errorf("weir bgp says %+v", n)
	}
	d.edit(configText("eth0", "", service) + bgp(4200000001, "{address: 10.0.0.2, asn: 64999, ttl: 2, attributes: {prepend: 1}}"))
	var path []uint32
	d.waitFor("tell ExaBGP the route", func() bool {
		text, err := exa.Updates()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var u exaUpdate
			if json.Unmarshal([]byte(line), &u) == nil && strings.Contains(line, prefix) {
				path = u.Neighbor.Message.Update.Attribute.ASPath
				return true
			}
		}
		return false
	})
	// ExaBGP merges both paths, as RFC 6793 (4.2.3) requires.
	if got := fmt.Sprint(path); got != "[4200000001 4200000001]" {
		t.Errorf("ExaBGP reads the path %s", got)
	}
	if n := d.bgp().Neighbors[0]; n.State != model.SessionEstablished {
		t.Errorf("weir bgp says %+v", n)
	}
}
