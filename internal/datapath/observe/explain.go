// Package observe says what the director's program does with packets: it runs the program a second
// time for packets that are asked about, and captures packets that pass.
package observe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// ErrNothingForwarded says that there has been no Set yet.
var ErrNothingForwarded = errors.New("nothing is forwarded yet")

// Explain runs a frame that comes in by an interface, and says what was found out on the way.
func (w *Snapshot) Explain(x *Observer, name string, frame []byte) (model.Explanation, error) {
	e := model.Explanation{Interface: name, Frame: frame}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return e, fmt.Errorf("interface %s: %w", name, err)
	}
	o, out, have, err := w.ask(x, frame, link.Attrs().Index)
	if err != nil {
		return e, err
	}
	p := &o.Packet
	e.Reason = x.reasons[o.Reason]
	outcome, _, _ := strings.Cut(e.Reason, "_")
	e.Outcome = model.Outcome(outcome)
	e.Flow = explainFlow(p)
	e.Backend = w.explainBackend(have, p)
	if err := w.explainAsked(x, e.Backend, p); err != nil {
		return e, err
	}
	w.explainService(&e, p)
	if slot, header := w.slotOf(p); slot != nil {
		e.Slot = w.explainSlot(p.Ring, slot, p.flow())
		e.Before = w.explainBefore(p, header)
		if slot.Next&(abi.SlotList|abi.SlotSettling) != 0 && header.Flags&uint8(abi.RingFlagRING_MEMORY) != 0 {
			e.Memory = w.explainMemory(x, have, p)
		}
	}
	e.Chosen = w.chosen(&e, p)
	if e.Outcome != model.OutcomeDrop {
		e.Out = out
	}
	e.Leaves = w.leaves(&e, o.Action, link, out)
	return e, nil
}

// explainFlow returns the flow by which the program looks the packet up; nil: it does not.
func explainFlow(p *observedPacket) *model.ExplainedFlow {
	if p.Flow.Protocol == 0 && p.Length == 0 {
		return nil
	}
	f := p.flow()
	e := &model.ExplainedFlow{Segment: f.Segment, Protocol: f.Protocol, Source: netip.AddrPortFrom(f.Source, f.SourcePort),
		Destination: netip.AddrPortFrom(f.Destination, f.DestinationPort), TTL: p.Ttl, Length: int(p.Length),
		ICMPError: p.has(observedPacketFlagPACKET_ICMP_ERROR)}
	switch {
	case p.has(observedPacketFlagPACKET_FRAGMENT_FIRST):
		e.Fragment = "first"
	case p.has(observedPacketFlagPACKET_FRAGMENT_LATER):
		e.Fragment = "later"
	}
	if model.Protocol(f.Protocol) == model.TCP && e.Fragment != "later" && !e.ICMPError {
		e.TCPFlags = tcpFlags(p.TcpFlags)
	}
	return e
}

// tcpFlags names the flags of a segment.
func tcpFlags(flags uint8) string {
	var set []string
	for i, name := range []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"} {
		if flags>>i&1 != 0 {
			set = append(set, name)
		}
	}
	return strings.Join(set, ",")
}

// explainService names the service; for a later fragment or a reply, it is the backend's service.
func (w *Snapshot) explainService(e *model.Explanation, p *observedPacket) {
	index := p.Service - 1
	switch {
	case p.Service != 0:
	case p.Backend != 0 && int(p.Backend) < len(w.Backends):
		index = w.Backends[p.Backend].Service
	default:
		return
	}
	s, known := w.Services[index]
	if !known {
		return
	}
	e.Service = &model.ExplainedService{Name: s.Name, Policy: s.Policy, Affinity: s.Affinity,
		ID: model.ServiceID{Segment: s.Segment, VIP: s.VIP, Protocol: s.Protocol, Port: s.Port}}
	if t := s.TierHealth; t != nil {
		e.Service.Tier = &model.ExplainedTier{Active: t.Active, Why: t.Why()}
	}
	if p.Service != 0 && len(s.SourceRanges) > 0 { // otherwise it is for all clients
		within, _ := model.SourceRange(s.SourceRanges, p.flow().Source)
		e.Service.SourceRange = &model.ExplainedSource{Range: within, Of: len(s.SourceRanges)}
	}
}

// explainBackend is the backend with the way to it.
func (w *Snapshot) explainBackend(have copied, p *observedPacket) *model.ExplainedBackend {
	if p.Backend == 0 || int(p.Backend) >= len(w.Backends) {
		return nil
	}
	entry := &w.Backends[p.Backend]
	hop, by, kernel := w.Leaves(entry.Ifindex, entry.Mac, map[uint32]string{})
	b := &model.ExplainedBackend{State: model.BackendState(entry.State), Mode: model.Mode(entry.Mode), Interface: by, NextHop: hop, ByKernel: kernel,
		VLAN: abi.BigEndian16(entry.Vlan), MTU: entry.Mtu, Local: entry.Flags&uint8(abi.BackendFlagBACKEND_LOCAL) != 0}
	b.Name, b.Backend = w.nameOf(p.Backend)
	if w.Inside != nil {
		b.VTEP, b.Wire = w.Inside(p.Backend)
	}
	if p.Snat != 0 {
		b.Source = w.sourceOf(have, p.Snat)
	}
	return b
}

// explainAsked says what the flow asks for after the program has seen the packet.
func (w *Snapshot) explainAsked(x *Observer, b *model.ExplainedBackend, p *observedPacket) error {
	const asks = uint8(abi.BackendFlagBACKEND_ASKS)
	if b == nil || b.Local || p.Snat < uint32(flows.BucketPorts) || w.Backends[p.Backend].Flags&asks == 0 {
		return nil
	}
	flow, err := x.snatFlow(p.Snat)
	if err != nil {
		return fmt.Errorf("read what the flow asks for: %w", err)
	}
	if flow == nil {
		return nil
	}
	asked := flow.Asked
	if flow.Proof&uint8(abi.SnatProofSNAT_ANSWER) != 0 { // the backend's number is in the port's place
		asked = abi.SnatAsked{State: uint8(abi.AskedStateASKED_PLAIN)}
	}
	b.Asked = &model.ExplainedAsked{State: x.asked[uint32(asked.State)]}
	if abi.AskedState(asked.State) == abi.AskedStateASKED_TAKEN {
		b.Asked.At = netip.AddrPortFrom(abi.AddressOf(w.Backends[p.Backend].Address, p.Flow.Ipv6 != 0), abi.BigEndian16(asked.Port))
	}
	return nil
}

// explainMemory says what is remembered of a flow, and whether the packet follows it.
func (w *Snapshot) explainMemory(x *Observer, have copied, p *observedPacket) *model.ExplainedMemory {
	e := w.remembered(have, p)
	now, err := flows.Clock()
	if e == nil || err != nil {
		return nil
	}
	memory := &model.ExplainedMemory{Class: flows.MeaningOf(abi.FlowState(e.State)).Class.String(), State: x.flowStates[uint32(e.State)], Age: model.Duration(time.Duration(max(0, int32(now-e.Seen))) << 30)}
	if int(e.Backend) < len(w.Backends) && w.Backends[e.Backend].Epoch == e.Epoch {
		_, memory.Backend = w.nameOf(e.Backend)
	}
	memory.Follows = p.Backend == e.Backend && w.usable(e, p, now)
	return memory
}

// usable is flow_usable.
func (w *Snapshot) usable(e *abi.FlowEntry, p *observedPacket, now uint32) bool {
	if !flows.Live(w.Backends, e, now) {
		return false
	}
	syn := p.opens()
	state := flows.MeaningOf(abi.FlowState(e.State)).State
	over := state == model.FlowClosing || state == model.FlowReset
	switch abi.BackendState(w.Backends[e.Backend].State) {
	case abi.BackendStateBACKEND_ACTIVE:
		return true
	case abi.BackendStateBACKEND_DRAINING:
		return !over || !syn
	case abi.BackendStateBACKEND_SUSPECT:
		return !syn && e.State != uint8(abi.FlowStateFLOW_ONCE)
	}
	return false
}

// opens is is_syn.
func (p *observedPacket) opens() bool {
	const finSynRstAck, syn = 0x17, 0x02
	return model.Protocol(p.Flow.Protocol) == model.TCP && !p.has(observedPacketFlagPACKET_ICMP_ERROR) && p.TcpFlags&finSynRstAck == syn
}

// chosen says what chose the backend, judging by what the program asked for.
func (w *Snapshot) chosen(e *model.Explanation, p *observedPacket) model.Chosen {
	slot, header := w.slotOf(p)
	switch {
	case p.Backend == 0:
		return ""
	case p.has(observedPacketFlagPACKET_FRAGMENT_LATER):
		return model.ChosenByFragment
	case p.Service == 0:
		return "" // a reply
	case slot == nil && p.Snat != 0:
		return model.ChosenBySNAT
	case slot == nil:
		return model.ChosenByQUIC
	case slot.Next&(abi.SlotList|abi.SlotSettling) != 0 && header.Flags&uint8(abi.RingFlagRING_MEMORY) != 0:
		switch {
		case e.Memory != nil && e.Memory.Follows:
			return model.ChosenByMemory
		case e.Memory == nil && !p.opens():
			return model.ChosenByAge
		}
	}
	if chosen := w.byPolicy(e, p, header); chosen != "" {
		return chosen
	}
	return model.ChosenByRow
}

// byPolicy says what chose the backend of a new connection, if the service's policy did.
func (w *Snapshot) byPolicy(e *model.Explanation, p *observedPacket, header *abi.RingHeader) model.Chosen {
	policy := model.Policy(header.Policy)
	switch {
	case !p.opens():
		return ""
	case policy == model.P2C && (header.TurnCount == 0 || header.Flags&uint8(abi.RingFlagRING_REDIRECTED) != 0):
		return model.ChosenByLoad // a connection that is not redirected goes to one of the slot's two
	case header.Flags&uint8(abi.RingFlagRING_REDIRECTED) != 0 && e.Reason != reasonRedirect:
		return ""
	case !slices.Contains(w.turnsOf(p.Ring, header), p.Backend): // all backends with turns are down
		return ""
	}
	return map[model.Policy]model.Chosen{model.Random: model.ChosenAtRandom, model.RoundRobin: model.ChosenByTurn, model.LeastConn: model.ChosenByLeast, model.P2C: model.ChosenByLoad}[policy]
}

// reasonRedirect is the label of FORWARD_REDIRECT.
const reasonRedirect = "forward_redirect"

// leaves is the interface that a frame leaves by.
func (w *Snapshot) leaves(e *model.Explanation, action int32, in netlink.Link, out []byte) string {
	const aborted, drop, pass, tx, redirect = 0, 1, 2, 3, 4
	switch {
	case action == tx:
		return in.Attrs().Name
	case action != redirect:
		return ""
	case e.Service != nil && e.Chosen != "":
		return e.Backend.Interface
	}
	// A reply takes the kernel's route, and another director of the group is on a link: the frame
	// has the MAC address of the interface that leads there.
	if len(out) < 12 {
		return ""
	}
	links, err := netlink.LinkList()
	if err != nil {
		return ""
	}
	at := slices.IndexFunc(links, func(l netlink.Link) bool {
		return slices.Equal(l.Attrs().HardwareAddr, net.HardwareAddr(out[6:12])) && l.Attrs().Index != in.Attrs().Index
	})
	if at < 0 {
		return ""
	}
	return links[at].Attrs().Name
}
