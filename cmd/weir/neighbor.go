package main

import (
	"net/netip"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/neighbor"
	"weir.io/weir/internal/store"
)

// joinGroup lets the directors that share a store agree on which of them answers for which VIP.
func joinGroup(group *store.Etcd) neighbor.Join {
	if group == nil {
		return nil
	}
	return func(self netip.Addr, lease time.Duration, notify func()) neighbor.Registry {
		return group.Owners(self, lease, notify)
	}
}

// neighborTable is left out if the director answers for no VIP itself.
func neighborTable(t *table, s model.NeighborStatus) {
	if len(s.Interfaces) == 0 {
		return
	}
	t.line("")
	if s.Director.IsValid() {
		t.row("answers as", s.Director)
	}
	if s.Lease != "" {
		t.row("lease of VIPs", s.Lease)
	}
	if s.Draining {
		t.row("draining", "others answer for the VIPs")
	}
	if s.Problem != "" {
		t.row("problem", s.Problem)
	}
	t.row("ANSWERS-ON", "MAC", "ANNOUNCED", "ANSWERED", "LIMITED", "CONFLICTS", "PROBLEM")
	for _, i := range s.Interfaces {
		t.row(i.Name, i.MAC, i.Announced, i.Answered, i.Limited, i.Conflicts, i.Problem)
	}
	t.line("")
	t.row("VIP", "ANSWERS", "OWNER", "SINCE", "INTERFACES", "PROBLEM")
	for _, v := range s.VIPs {
		who, owner, since := "another director", "", ""
		switch v.State {
		case model.NeighborAnswers:
			who, since = "this director", v.Since.Format(time.RFC3339)
		case model.NeighborNobody:
			who = "nobody"
		}
		if v.Owner.IsValid() {
			owner = v.Owner.String()
		}
		t.row(v.VIP, who, owner, since, list(v.Interfaces), v.Problem)
	}
}
