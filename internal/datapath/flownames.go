package datapath

import (
	"net/netip"

	"weir.io/weir/internal/model"
)

// Directors tell each other of flows by names: their indexes differ.

// flowNames is what the indexes in flow memory stand for. It is made when it is first
// needed after a Set.
type flowNames struct {
	services map[uint32]*service
	backends map[uint32]netip.AddrPort
}

func (d *Datapath) nameIndexes() {
	if d.names.services != nil {
		return
	}
	d.names = flowNames{map[uint32]*service{}, map[uint32]netip.AddrPort{}}
	for _, s := range d.services {
		d.names.services[s.index] = s
		for key, b := range s.backends {
			d.names.backends[b.index] = netip.AddrPortFrom(key.address, key.port)
		}
	}
}

// nameFlow says what an entry is in words that all directors know; false: it is of no use
// to others, because it is over, has only begun, or was of a backend that is gone.
func (d *Datapath) nameFlow(e *directorFlowEntry, now uint32) (model.RememberedFlow, bool) {
	state := toldState(directorFlowState(e.State))
	s, backend := d.names.services[e.Service], d.names.backends[e.Backend]
	if state == 0 || s == nil || !backend.IsValid() || !d.entries.live(e, now) {
		return model.RememberedFlow{}, false
	}
	return model.RememberedFlow{
		Service: model.ServiceID{Segment: s.desired.Segment, VIP: s.key.vip, Protocol: s.key.protocol, Port: s.key.port},
		Backend: backend,
		Source:  netip.AddrPortFrom(addressOf(e.Source, s.key.vip.Is6()), bigEndian16(e.SourcePort)),
		Port:    bigEndian16(e.DestinationPort),
		State:   state,
		Age:     uint32(max(0, int32(now-e.Seen))),
	}, true
}

// toldState is the state in which others are told of a flow; 0: they are not.
func toldState(state directorFlowState) model.RememberedState {
	switch state {
	case directorFlowStateFLOW_ESTABLISHED, directorFlowStateFLOW_ACTIVE:
		return model.FlowOpen
	case directorFlowStateFLOW_CLOSING:
		return model.FlowClosing
	case directorFlowStateFLOW_RESET:
		return model.FlowReset
	}
	return 0
}

// flowState is the state of a flow that was told; 0: there is none.
func flowState(state model.RememberedState, protocol model.Protocol) directorFlowState {
	switch {
	case protocol != model.TCP && state == model.FlowOpen:
		return directorFlowStateFLOW_ACTIVE
	case protocol != model.TCP:
		return 0
	case state == model.FlowOpen:
		return directorFlowStateFLOW_ESTABLISHED
	case state == model.FlowClosing:
		return directorFlowStateFLOW_CLOSING
	case state == model.FlowReset:
		return directorFlowStateFLOW_RESET
	}
	return 0
}
