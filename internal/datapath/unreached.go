package datapath

import (
	"net/netip"

	"weir.io/weir/internal/model"
)

// Unreached returns the VIPs, in no segment, of which a backend is to get packets and gets
// none, because its next hop is not known: after a Set with backends that are new here until
// their neighbours have answered, and for as long as one does not.
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
