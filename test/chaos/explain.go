package main

import (
	"fmt"
	"net/netip"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
	"weir.io/weir/test/chaos/traffic"
)

// protocols are IANA's numbers, as in the IP header.
var protocols = map[string]uint8{"tcp": 6, "udp": 17, "quic": 17}

// place is the backend of a connection's packets by a configuration.
type place struct {
	Since  float64 `json:"since"` // seconds from the beginning
	Slot   int     `json:"slot"`
	Owner  string  `json:"owner"`
	Backup string  `json:"backup,omitempty"`
}

// explainer finds out where connections' packets went, as far as that is known from outside: by the
// rings of the configurations that the directors were told.
type explainer struct {
	group  *group // nil: without rings
	begin  time.Time
	tables map[int]model.Table // of the group's history
	done   []performed
	counts *counters
	ways   *ways
}

// around is how close to a break an event must be to be named with it.
const around = 3 * time.Second

// places returns the owner of the connection's slot when it was opened, and in every configuration
// from its last good moment until then. QUIC connections name their backend themselves.
func (x *explainer) places(c traffic.Connection, at time.Time) []place {
	list := []place{}
	if x.group == nil || c.Protocol == "quic" {
		return list
	}
	configured := x.group.configurations()
	for i, v := range configured {
		ends := at
		if i+1 < len(configured) {
			ends = configured[i+1].at
		}
		opened := !v.at.After(c.Opened) && ends.After(c.Opened)
		recent := ends.After(c.Good) && v.at.Before(at)
		if !opened && !recent {
			continue
		}
		p := x.place(i, c.Protocol, c.Client)
		if n := len(list); n == 0 || list[n-1].Owner != p.Owner || list[n-1].Slot != p.Slot {
			p.Since = x.seconds(v.at)
			list = append(list, p)
		}
	}
	return list
}

// place finds a flow's slot in the ring of one configuration.
func (x *explainer) place(number int, protocol string, client netip.AddrPort) place {
	table, known := x.tables[number]
	if !known {
		table, _ = engine.Plan(model.Config{Services: x.group.services(x.group.configurations()[number].group)}, nil, nil)
		x.tables[number] = table
	}
	for i := range table.Services {
		s := &table.Services[i]
		if s.Name != protocol {
			continue
		}
		flow := model.Flow{Source: client.Addr(), SourcePort: client.Port(), Destination: s.VIP, DestinationPort: s.Port.First, Protocol: protocols[protocol]}
		slot := s.Ring.SlotOf(flow.Hash(s.Salt, s.Affinity))
		p := place{Slot: slot}
		for n, candidate := range s.Ring.Row(slot) {
			switch n {
			case 0:
				p.Owner = s.Backends[candidate].Name
			case 1:
				p.Backup = s.Backends[candidate].Name
			}
		}
		return p
	}
	return place{}
}

// events returns what happened from a little before the connection's last good moment to the break.
func (x *explainer) events(b traffic.Break) []string { return x.around(b.Good, b.At) }

// around returns what happened from a little before a time to a little after a moment.
func (x *explainer) around(from, at time.Time) []string {
	if early := at.Add(-around); early.Before(from) {
		from = early
	}
	list := []string{}
	for _, e := range x.done {
		if e.effect.After(from) && e.effect.Before(at.Add(around)) {
			list = append(list, fmt.Sprintf("%+.1fs %s", e.effect.Sub(at).Seconds(), e))
		}
	}
	return list
}

func (x *explainer) seconds(at time.Time) float64 {
	return at.Sub(x.begin).Round(time.Millisecond).Seconds()
}
