package datapath

import (
	"fmt"
	"net/netip"

	"weir.io/weir/internal/model"
)

// Unreached returns the VIPs, in no segment, that have a backend which is to get packets and gets
// none, because its next hop is not known. That is so after a Set with backends that are new here,
// until their neighbors have answered, and for as long as one does not answer.
func (d *Datapath) Unreached() map[netip.Addr]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	unreached := map[netip.Addr]bool{}
	if d.entries.memory == nil {
		return unreached // closed
	}
	for _, s := range d.services {
		if s.placed && s.desired.Segment == (model.Segment{}) && d.lacksWay(s) {
			unreached[s.desired.VIP] = true
		}
	}
	return unreached
}

// Unreachable returns at most that many backends that should get packets and to which there
// is no way, each with the reason.
func (d *Datapath) Unreachable(most int) (found []model.UnreachableBackend) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.entries.memory == nil {
		return nil // closed
	}
	for _, s := range d.table.Services {
		of := d.services[keyOf(&s)]
		if of == nil || !of.placed || len(found) == most {
			continue
		}
		for _, b := range of.order {
			if why := d.whyUnreachable(b); why != "" && len(found) < most {
				found = append(found, model.UnreachableBackend{Service: s.Name, Backend: b.desired.Name, Why: why})
			}
		}
	}
	return found
}

// whyUnreachable says why there is no way to a backend; empty: there is one, or none is needed.
func (d *Datapath) whyUnreachable(b *backend) string {
	entry := &d.entries.entries[b.index]
	if !b.desired.State.Alive() || entry.Flags&uint8(directorBackendFlagBACKEND_LOCAL) != 0 || !model.MAC(entry.Mac).IsZero() {
		return ""
	}
	hop := d.hops.resolve(b.desired, d.own)
	switch {
	case hop.local || !hop.mac.IsZero():
		return "" // the entry is about to be written
	case hop.problem != "":
		return hop.problem
	}
	return fmt.Sprintf("nothing answers for %v on %s", d.hops.neighborOf(b.desired), d.hops.nameOf(hop.link))
}

func (d *Datapath) lacksWay(s *service) bool {
	for _, b := range s.order {
		entry := &d.entries.entries[b.index]
		local := entry.Flags&uint8(directorBackendFlagBACKEND_LOCAL) != 0
		if b.desired.State.Alive() && !local && model.MAC(entry.Mac).IsZero() {
			return true
		}
	}
	return false
}
