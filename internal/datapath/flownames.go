package datapath

import (
	"net/netip"

	"weir.io/weir/internal/model"
)

// Directors use names when they tell each other of flows, because their indexes differ.

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

// flowMeaning is what a state of flow memory means to others: see bpf/lib/proof.h.
type flowMeaning struct {
	class model.FlowClass
	state model.RememberedState // 0: no flow has this state
}

// meaningOf is the meaning of a value of enum flow_state.
func meaningOf(state directorFlowState) flowMeaning {
	switch state {
	case directorFlowStateFLOW_SYN, directorFlowStateFLOW_ONCE, directorFlowStateFLOW_LEARNED:
		return flowMeaning{model.FreshFlow, model.FlowOpening}
	case directorFlowStateFLOW_BEGUN, directorFlowStateFLOW_ANSWERED, directorFlowStateFLOW_TWICE, directorFlowStateFLOW_TOLD, directorFlowStateFLOW_TOLD_UDP:
		return flowMeaning{model.FreshFlow, model.FlowOpen}
	case directorFlowStateFLOW_PARTED:
		return flowMeaning{model.FreshFlow, model.FlowClosing}
	case directorFlowStateFLOW_CUT:
		return flowMeaning{model.FreshFlow, model.FlowReset}
	case directorFlowStateFLOW_ESTABLISHED, directorFlowStateFLOW_ACTIVE:
		return flowMeaning{model.SustainedFlow, model.FlowOpen}
	case directorFlowStateFLOW_PROVED:
		return flowMeaning{model.ProvedFlow, model.FlowOpen}
	case directorFlowStateFLOW_CLOSING:
		return flowMeaning{model.SustainedFlow, model.FlowClosing}
	case directorFlowStateFLOW_RESET:
		return flowMeaning{model.SustainedFlow, model.FlowReset}
	}
	return flowMeaning{}
}

// nameFlow describes an entry in names that all directors know; false: the entry is of no use,
// because its backend or service is gone, or it has timed out.
func (d *Datapath) nameFlow(e *directorFlowEntry, now uint32) (model.RememberedFlow, bool) {
	means := meaningOf(directorFlowState(e.State))
	s, backend := d.names.services[e.Service], d.names.backends[e.Backend]
	if means.state == 0 || s == nil || !backend.IsValid() || !d.entries.live(e, now) {
		return model.RememberedFlow{}, false
	}
	f := model.RememberedFlow{
		Service: s.key.id(),
		Backend: backend,
		Source:  netip.AddrPortFrom(addressOf(e.Source, s.key.vip.Is6()), bigEndian16(e.SourcePort)),
		Port:    bigEndian16(e.DestinationPort),
		Class:   means.class,
		State:   means.state,
		Age:     uint32(max(0, int32(now-e.Seen))),
	}
	if e.State != uint8(directorFlowStateFLOW_ANSWERED) {
		f.Next = e.Next
	}
	return f, true
}

// flowState is the state of a flow that another director told; 0: there is none. What an older
// version tells counts as fresh, because it may be part of a flood.
func flowState(f *model.RememberedFlow) directorFlowState {
	fresh := f.Class == model.FreshFlow
	switch {
	case f.Service.Protocol != model.TCP && f.State != model.FlowOpen:
		return 0
	case f.Service.Protocol != model.TCP && fresh:
		return directorFlowStateFLOW_TOLD_UDP
	case f.Service.Protocol != model.TCP:
		return directorFlowStateFLOW_ACTIVE
	case f.State == model.FlowOpen && fresh:
		return directorFlowStateFLOW_TOLD
	case f.State == model.FlowOpen && f.Class == model.ProvedFlow:
		return directorFlowStateFLOW_PROVED
	case f.State == model.FlowOpen:
		return directorFlowStateFLOW_ESTABLISHED
	case f.State == model.FlowClosing && fresh:
		return directorFlowStateFLOW_PARTED
	case f.State == model.FlowClosing:
		return directorFlowStateFLOW_CLOSING
	case f.State == model.FlowReset && fresh:
		return directorFlowStateFLOW_CUT
	case f.State == model.FlowReset:
		return directorFlowStateFLOW_RESET
	}
	return 0
}
