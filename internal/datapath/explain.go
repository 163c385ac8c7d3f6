package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// ErrNothingForwarded says that there has been no Set yet.
var ErrNothingForwarded = errors.New("nothing is forwarded yet")

// Explain returns what the director would do with a frame that comes in by an interface, and why.
// The program itself says so, run with a copy of what it remembers. Nothing changes by it. The
// first call loads the program, which takes seconds.
func (d *Datapath) Explain(name string, frame []byte) (model.Explanation, error) {
	d.observing.Lock()
	defer d.observing.Unlock()
	if d.observer == nil {
		x, err := loadObserver(d.options, d.kernel.all)
		if err != nil {
			return model.Explanation{}, err
		}
		d.observer = x
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.begun || d.entries.memory == nil {
		return model.Explanation{}, ErrNothingForwarded
	}
	d.nameIndexes()
	w := &snapshot{rings: d.rings.memory, entries: d.entries.entries, settings: d.written, services: d.names.services, live: d.kernel.all, onward: d.hops.onward}
	closeTable, err := d.openSNAT(w)
	if err != nil {
		return model.Explanation{}, err
	}
	defer closeTable()
	return w.explain(d.observer, name, frame)
}

// openSNAT gives a snapshot full NAT's table.
func (d *Datapath) openSNAT(w *snapshot) (func(), error) {
	header, found, err := d.kernel.snatHeader()
	if err != nil || !found {
		return func() {}, err
	}
	table, err := d.kernel.usedSNAT()
	if err != nil || table == nil {
		return func() {}, err
	}
	w.snat, w.header = table, header
	return func() { table.Close() }, nil
}

// explain runs a frame, and says what was found out on the way.
func (w *snapshot) explain(x *observer, name string, frame []byte) (model.Explanation, error) {
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
	e.Backend = w.explainBackend(p)
	if err := w.explainAsked(x, e.Backend, p); err != nil {
		return e, err
	}
	w.explainService(&e, p)
	if slot, header := w.slotOf(p); slot != nil {
		e.Slot = w.explainSlot(p.Ring, slot, p.flow())
		e.Before = w.explainBefore(p, header)
		if slot.Next&(slotList|slotSettling) != 0 && header.Flags&uint8(directorRingFlagRING_MEMORY) != 0 {
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
func (w *snapshot) explainService(e *model.Explanation, p *observedPacket) {
	index := p.Service - 1
	switch {
	case p.Service != 0:
	case p.Backend != 0 && int(p.Backend) < len(w.entries):
		index = w.entries[p.Backend].Service
	default:
		return
	}
	s := w.services[index]
	if s == nil {
		return
	}
	e.Service = &model.ExplainedService{Name: s.desired.Name, Policy: s.desired.Policy, Affinity: s.desired.Affinity,
		ID: model.ServiceID{Segment: s.desired.Segment, VIP: s.key.vip, Protocol: s.key.protocol, Port: s.key.port}}
	if p.Service != 0 {
		e.Service.SourceRange = explainSource(s.desired, p.flow().Source)
	}
}

// explainBackend is the backend with the way to it.
func (w *snapshot) explainBackend(p *observedPacket) *model.ExplainedBackend {
	if p.Backend == 0 || int(p.Backend) >= len(w.entries) {
		return nil
	}
	entry := &w.entries[p.Backend]
	hop, by, kernel := w.onward.wayOf(entry, map[uint32]string{})
	b := &model.ExplainedBackend{State: model.BackendState(entry.State), Mode: model.Mode(entry.Mode), Interface: by, NextHop: hop, ByKernel: kernel,
		VLAN: bigEndian16(entry.Vlan), MTU: entry.Mtu, Local: entry.Flags&uint8(directorBackendFlagBACKEND_LOCAL) != 0}
	b.Name, b.Backend = w.nameOf(p.Backend)
	if p.Snat != 0 {
		b.Source = w.header.source(p.Snat, p.Flow.Ipv6 != 0)
	}
	return b
}

// explainAsked says what the flow asks for after the program has seen the packet.
func (w *snapshot) explainAsked(x *observer, b *model.ExplainedBackend, p *observedPacket) error {
	const asks = uint8(directorBackendFlagBACKEND_ASKS)
	if b == nil || b.Local || p.Snat < uint32(snatBucketPorts) || w.entries[p.Backend].Flags&asks == 0 {
		return nil
	}
	var bucket directorSnatBucket
	if err := x.snat.Lookup(p.Snat/uint32(snatBucketPorts), &bucket); err != nil {
		return fmt.Errorf("read what the flow asks for: %w", err)
	}
	flow := &bucket.Flows[p.Snat%uint32(snatBucketPorts)]
	asked := flow.Asked
	if flow.Proof&uint8(directorSnatProofSNAT_ANSWER) != 0 { // the backend's number is in the port's place
		asked = directorSnatAsked{State: uint8(directorAskedStateASKED_PLAIN)}
	}
	b.Asked = &model.ExplainedAsked{State: x.asked[uint32(asked.State)]}
	if directorAskedState(asked.State) == directorAskedStateASKED_TAKEN {
		b.Asked.At = netip.AddrPortFrom(addressOf(w.entries[p.Backend].Address, p.Flow.Ipv6 != 0), bigEndian16(asked.Port))
	}
	return nil
}

// explainMemory says what is remembered of a flow, and whether the packet follows it.
func (w *snapshot) explainMemory(x *observer, have copied, p *observedPacket) *model.ExplainedMemory {
	e := w.remembered(have, p)
	now, err := flowClock()
	if e == nil || err != nil {
		return nil
	}
	memory := &model.ExplainedMemory{Class: meaningOf(directorFlowState(e.State)).class.String(), State: x.flowStates[uint32(e.State)], Age: model.Duration(time.Duration(max(0, int32(now-e.Seen))) << 30)}
	if int(e.Backend) < len(w.entries) && w.entries[e.Backend].Epoch == e.Epoch {
		_, memory.Backend = w.nameOf(e.Backend)
	}
	memory.Follows = p.Backend == e.Backend && w.usable(e, p, now)
	return memory
}

// usable is flow_usable.
func (w *snapshot) usable(e *directorFlowEntry, p *observedPacket, now uint32) bool {
	entries := backendEntries{entries: w.entries}
	if !entries.live(e, now) {
		return false
	}
	syn := p.opens()
	state := meaningOf(directorFlowState(e.State)).state
	over := state == model.FlowClosing || state == model.FlowReset
	switch directorBackendState(w.entries[e.Backend].State) {
	case directorBackendStateBACKEND_ACTIVE:
		return true
	case directorBackendStateBACKEND_DRAINING:
		return !over || !syn
	case directorBackendStateBACKEND_SUSPECT:
		return !syn && e.State != uint8(directorFlowStateFLOW_ONCE)
	}
	return false
}

// opens is is_syn.
func (p *observedPacket) opens() bool {
	const finSynRstAck, syn = 0x17, 0x02
	return model.Protocol(p.Flow.Protocol) == model.TCP && !p.has(observedPacketFlagPACKET_ICMP_ERROR) && p.TcpFlags&finSynRstAck == syn
}

// chosen says what chose the backend, judging by what the program asked for.
func (w *snapshot) chosen(e *model.Explanation, p *observedPacket) model.Chosen {
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
	case slot.Next&(slotList|slotSettling) != 0 && header.Flags&uint8(directorRingFlagRING_MEMORY) != 0:
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
func (w *snapshot) byPolicy(e *model.Explanation, p *observedPacket, header *directorRingHeader) model.Chosen {
	policy := model.Policy(header.Policy)
	switch {
	case !p.opens():
		return ""
	case policy == model.P2C && (header.TurnCount == 0 || header.Flags&uint8(directorRingFlagRING_REDIRECTED) != 0):
		return model.ChosenByLoad // a connection that is not redirected goes to one of the slot's two
	case header.Flags&uint8(directorRingFlagRING_REDIRECTED) != 0 && e.Reason != reasonRedirect:
		return ""
	case !slices.Contains(w.turnsOf(p.Ring, header), p.Backend): // all backends with turns are down
		return ""
	}
	return map[model.Policy]model.Chosen{model.Random: model.ChosenAtRandom, model.RoundRobin: model.ChosenByTurn, model.LeastConn: model.ChosenByLeast, model.P2C: model.ChosenByLoad}[policy]
}

// reasonRedirect is the label of FORWARD_REDIRECT.
const reasonRedirect = "forward_redirect"

// leaves is the interface that a frame leaves by.
func (w *snapshot) leaves(e *model.Explanation, action int32, in netlink.Link, out []byte) string {
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
