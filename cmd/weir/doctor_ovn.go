package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/ovn"
	"weir.io/weir/internal/ovsdb"
)

// ovnPatience is how long OVN's database may take to say what it has.
const ovnPatience = 5 * time.Second

// examineOVN asks OVN's Southbound database what a director needs of it, and changes nothing there.
func examineOVN(ctx context.Context, c *model.Config) []doctor.Finding {
	if !c.OVN.Given() {
		return nil
	}
	finding := func(level doctor.Level, fix, format string, args ...any) doctor.Finding {
		return doctor.Finding{Level: level, Check: "ovn", Text: fmt.Sprintf(format, args...), Fix: fix}
	}
	ctx, end := context.WithTimeout(ctx, ovnPatience)
	defer end()
	var last ovn.Snapshot
	err := ovn.Follow(ctx, ovn.Options{Endpoints: c.OVN.Endpoints, Leader: c.OVN.LeaderOnly, TLS: ovsdb.TLS{CA: c.OVN.CA, Cert: c.OVN.Cert, Key: c.OVN.Key}}, func(s ovn.Snapshot) {
		if last = s; s.Status.Known {
			end()
		}
	})
	if err == nil {
		err = last.Status.Problem
	}
	if !last.Status.Known {
		return []doctor.Finding{finding(doctor.Fail, "see that ovn.endpoints are those of the Southbound database, and can be reached from here", "OVN's Southbound database says nothing: %v", err)}
	}
	findings := []doctor.Finding{finding(doctor.OK, "", "OVN's Southbound database at %s has %d networks and %d ports", last.Status.Endpoint, last.Status.Networks, last.Status.Ports)}
	if last.Status.IPsec {
		findings = append(findings, finding(doctor.Fail, "ovn-nbctl set nb_global . ipsec=false, if the hosts' network is trusted", "OVN encrypts tunnels: its hosts take no packets from a director"))
	}
	for i := range c.Segments {
		s := &c.Segments[i]
		if s.Network == "" {
			continue
		}
		if _, err := last.Network(s.Network); err != nil {
			findings = append(findings, finding(doctor.Fail, "name a logical switch: its name, the ID that Neutron shows, or its UUID", "segment %s: %v", s.ID, err))
		}
	}
	of := slices.IndexFunc(last.Chassis(), func(h ovn.Chassis) bool { return h.Name == c.OVN.Chassis })
	switch {
	case of < 0:
		findings = append(findings, finding(doctor.Warn, "start weir run", "chassis %s is not there: OVN's hosts take no packets from this director", c.OVN.Chassis))
	case !last.Chassis()[of].Weir:
		findings = append(findings, finding(doctor.Fail, "choose another name in ovn.chassis", "chassis %s is a host of OVN, not a director", c.OVN.Chassis))
	default:
		var ends []string
		for _, e := range last.Chassis()[of].Encaps {
			ends = append(ends, fmt.Sprintf("%s %v", e.Kind, e.IP))
		}
		findings = append(findings, finding(doctor.OK, "", "chassis %s takes tunnels at %s", c.OVN.Chassis, strings.Join(ends, ", ")))
	}
	return findings
}
