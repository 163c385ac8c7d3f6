package main

import (
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/ovnlab"
)

// weir doctor asks OVN's database for what a configuration needs, and names what is missing.
func TestDoctorAsksOVN(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	n.NBctl("--wait=sb", "ls-add", "tenant")
	n.SBctl("chassis-add", "hv1", "geneve", "192.0.2.1")
	c := &model.Config{Director: model.Director{VTEP: model.VTEP{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}},
		OVN:      model.OVN{Endpoints: []string{n.SB}, Chassis: "weir-lb1"},
		Segments: []model.SegmentSettings{{ID: model.Segment{Kind: model.SegmentGeneve, ID: 1}, Network: "tenant"}}}
	finds := func(when string, level doctor.Level, want string) {
		t.Helper()
		for _, f := range examineOVN(t.Context(), c) {
			if f.Level == level && strings.Contains(f.Text, want) {
				return
			}
		}
		t.Errorf("%s there is no %s about %q: %+v", when, level, want, examineOVN(t.Context(), c))
	}
	finds("with a network", doctor.OK, "has 1 networks and 0 ports")
	finds("without a director", doctor.Warn, "chassis weir-lb1 is not there")
	c.OVN.Chassis = "hv1"
	finds("with a host's name", doctor.Fail, "chassis hv1 is a host of OVN")
	n.SBctl("set", "Chassis", "hv1", "external_ids:weir-director=lb1")
	finds("with a director", doctor.OK, "chassis hv1 takes tunnels at geneve 192.0.2.1")
	c.Segments[0].Network = "other"
	finds("with another network", doctor.Fail, "segment geneve:1")
	n.NBctl("--wait=sb", "set", "NB_Global", ".", "ipsec=true")
	finds("with IPsec", doctor.Fail, "encrypts tunnels")
	n.StopSB()
	finds("without a database", doctor.Fail, "OVN's Southbound database says nothing")
	if c.OVN = (model.OVN{}); examineOVN(t.Context(), c) != nil {
		t.Error("without OVN something is found")
	}
}
