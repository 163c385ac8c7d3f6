package datapath

import (
	"net/netip"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/datapath/observe"
	"weir.io/weir/internal/model"
)

// Directors use names when they share flows, because their indexes differ.

// flowNames is what indexes stand for. It is made when it is first
// needed after a Set.
type flowNames struct {
	services map[uint32]*service
	backends map[uint32]netip.AddrPort
	observed map[uint32]observe.Service
}

func (d *Datapath) nameIndexes() {
	if d.names.services != nil {
		return
	}
	d.names = flowNames{map[uint32]*service{}, map[uint32]netip.AddrPort{}, map[uint32]observe.Service{}}
	for _, s := range d.services {
		d.names.services[s.index], d.names.observed[s.index] = s, s.observed()
		for key, b := range s.backends {
			d.names.backends[b.index] = netip.AddrPortFrom(key.address, key.port)
		}
	}
}

// observed is the service as observers see it.
func (s *service) observed() observe.Service {
	o := observe.Service{TableService: s.desired, Indexes: make([]uint32, len(s.order))}
	for i, b := range s.order {
		o.Indexes[i] = b.index
	}
	return o
}

// nameFlow describes an entry in names that all directors know; false: the entry is of no use,
// because its backend or service is gone, or it has timed out.
func (d *Datapath) nameFlow(e *abi.FlowEntry, now uint32) (model.RememberedFlow, bool) {
	means := flows.MeaningOf(abi.FlowState(e.State))
	s, backend := d.names.services[e.Service], d.names.backends[e.Backend]
	if means.State == 0 || s == nil || !backend.IsValid() || !flows.Live(d.entries.Entries, e, now) {
		return model.RememberedFlow{}, false
	}
	f := model.RememberedFlow{
		Service: s.key.id(),
		Backend: backend,
		Source:  netip.AddrPortFrom(abi.AddressOf(e.Source, s.key.vip.Is6()), abi.BigEndian16(e.SourcePort)),
		Port:    abi.BigEndian16(e.DestinationPort),
		Class:   means.Class,
		State:   means.State,
		Age:     uint32(max(0, int32(now-e.Seen))),
	}
	if e.State != uint8(abi.FlowStateFLOW_ANSWERED) {
		f.Next = e.Next
	}
	return f, true
}
