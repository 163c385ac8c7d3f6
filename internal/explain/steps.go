package explain

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
)

// chosenTexts say what chose a backend.
var chosenTexts = map[model.Chosen]string{
	model.ChosenByFragment: "as its packet's first fragment",
	model.ChosenBySNAT:     "full NAT knows the flow",
	model.ChosenByQUIC:     "its connection ID names it",
	model.ChosenByMemory:   "the flow is remembered",
	model.ChosenByLoad:     "by load, of the slot's owner and its backup",
	model.ChosenByTurn:     "its turn is the next one",
	model.ChosenAtRandom:   "drawn at random: each new connection is",
	model.ChosenByLeast:    "by load, the least of all",
	model.ChosenByRow:      "the first candidate that is up",
	model.ChosenByAge:      "the oldest candidate that is up: nobody has seen the connection begin",
}

// Steps says each decision of an explanation in words, in the order in which they were made,
// and then what is in the packet as it came and as it leaves, a line for each header.
func Steps(e *model.Explanation) []model.ExplainedStep {
	var all steps
	all.add(model.StepComesIn, e.Interface)
	if e.Tunnel != nil {
		all.add(model.StepTunnel, tunnelText(e.Tunnel))
	}
	if e.Flow != nil {
		all.add(model.StepSegment, e.Flow.Segment.String())
		all.add(model.StepFlow, FlowText(e.Flow))
	}
	if s := e.Service; s != nil {
		all.add(model.StepService, fmt.Sprintf("%s: %s %s port %s, policy %s, affinity %s", s.Name, s.ID.VIP, s.ID.Protocol, s.ID.Port, s.Policy, s.Affinity))
		if t := s.Tier; t != nil {
			all.add(model.StepTier, fmt.Sprintf("%d gets new connections: %s", t.Active, t.Why))
		}
		if r := s.SourceRange; r != nil {
			all.add(model.StepClient, sourceText(r))
		}
	}
	if m := e.Memory; m != nil {
		all.add(model.StepRemembered, memoryText(m))
	}
	all.addSlot(model.StepSlot, e.Slot)
	all.addSlot(model.StepSlotBefore, e.Before)
	if b := e.Backend; b != nil {
		all.add(model.StepBackend, strings.TrimSuffix(fmt.Sprintf("%s %s: %s", b.Name, EndText(b.Backend), chosenTexts[e.Chosen]), ": "))
		all.add(model.StepWay, wayText(b))
	}
	all.add(model.StepOutcome, fmt.Sprintf("%s: %s", e.Reason, model.ReasonText(e.Reason)))
	if e.Leaves != "" {
		all.add(model.StepLeavesBy, e.Leaves)
	}
	all.addFrame(model.StepPacketIn, e.Frame, cameIn(e))
	all.addFrame(model.StepPacketOut, e.Out, leavesIn(e))
	return all
}

// cameIn is the kind of the tunnel that the packet has come in.
func cameIn(e *model.Explanation) model.SegmentKind {
	switch {
	case e.Tunnel != nil:
		return e.Tunnel.Wire.Kind
	case e.Flow != nil:
		return e.Flow.Segment.Kind
	}
	return model.SegmentNone
}

// leavesIn is the kind of the tunnel that the packet leaves in: to its backend, or, of a reply, to its client.
func leavesIn(e *model.Explanation) model.SegmentKind {
	switch {
	case e.Backend == nil || e.Service == nil:
		return cameIn(e)
	case e.Chosen == "":
		return e.Service.ID.Segment.Kind
	}
	return e.Backend.Wire.Kind
}

// tunnelText says in which tunnel a packet was made up.
func tunnelText(t *model.ExplainedTunnel) string {
	text := fmt.Sprintf("made up: %s on the wire, from VTEP %s", t.Wire, t.VTEP)
	if t.Known {
		return fmt.Sprintf("%s, where %s is", text, t.Source)
	}
	return fmt.Sprintf("%s, one that is known; nothing says where %s is, and from a VTEP that is none of the segment its packets are dropped (drop_overlay_peer)", text, t.Source)
}

type steps []model.ExplainedStep

func (all *steps) add(step model.Decision, says string) {
	*all = append(*all, model.ExplainedStep{Step: step, Says: says})
}

func (all *steps) addFrame(step model.Decision, frame []byte, in model.SegmentKind) {
	for _, line := range describeIn(frame, in) {
		all.add(step, line)
	}
}

func (all *steps) addSlot(step model.Decision, s *model.ExplainedSlot) {
	if s == nil {
		return
	}
	text := fmt.Sprintf("%d of %d", s.Number, s.Of)
	if s.Settling {
		text += ", flows of others may be remembered"
	}
	all.add(step, text)
	for _, c := range s.Candidates {
		state := c.State.String()
		if o := c.Override; o != nil {
			state += fmt.Sprintf(" (by %s at %s, beside the file)", o.By, o.At.Format(time.RFC3339))
		}
		if c.Unhealthy != "" {
			state += fmt.Sprintf(" (%s)", c.Unhealthy)
		}
		all.add(model.StepCandidate, strings.TrimSuffix(fmt.Sprintf("%s %s, %s, %s", c.Name, EndText(c.Backend), state, generationsText(c.Generations)), ", "))
	}
}

func sourceText(r *model.ExplainedSource) string {
	if !r.Range.IsValid() {
		return fmt.Sprintf("in none of the service's source ranges (%d)", r.Of)
	}
	return fmt.Sprintf("in source range %s, one of %d", r.Range, r.Of)
}

// generationsText names the generations in which a candidate is the slot's owner, or its backup.
func generationsText(all []model.ExplainedGeneration) string {
	var parts []string
	for _, backup := range []bool{false, true} {
		var numbers []string
		for _, g := range all {
			if g.Backup == backup {
				numbers = append(numbers, fmt.Sprint(g.Number))
			}
		}
		role := "owner"
		if backup {
			role = "backup"
		}
		if len(numbers) > 0 {
			parts = append(parts, role+" in generation "+strings.Join(numbers, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// FlowText says what a packet is looked up by.
func FlowText(f *model.ExplainedFlow) string {
	protocol := model.Protocol(f.Protocol)
	name := fmt.Sprintf("protocol %d", f.Protocol)
	switch {
	case protocol == model.TCP || protocol.Datagrams():
		name = protocol.String()
	case f.Protocol == 1 || f.Protocol == 58:
		name = "icmp"
	}
	text := fmt.Sprintf("%s %s > %s", name, EndText(f.Source), EndText(f.Destination))
	if f.ICMPError {
		text += ", an ICMP error about it"
	}
	if f.Fragment != "" {
		text += ", " + f.Fragment + " fragment"
	}
	if f.TCPFlags != "" {
		text += ", " + f.TCPFlags
	}
	return fmt.Sprintf("%s, TTL %d, %d bytes", text, f.TTL, f.Length)
}

func memoryText(m *model.ExplainedMemory) string {
	backend := "a backend that is gone"
	if m.Backend.IsValid() {
		backend = EndText(m.Backend)
	}
	text := fmt.Sprintf("%s (%s) at %s, last packet %s ago", m.State, m.Class, backend, time.Duration(m.Age).Round(time.Second))
	if !m.Follows {
		text += ", not followed"
	}
	return text
}

func wayText(b *model.ExplainedBackend) string {
	if b.Local {
		return fmt.Sprintf("%s, this host", b.Mode)
	}
	to := orDash(b.NextHop.String())
	if b.ByKernel {
		to = "whom the kernel finds there"
	}
	text := fmt.Sprintf("%s, by %s to %s", b.Mode, orDash(b.Interface), to)
	if b.VTEP.IsValid() {
		text += fmt.Sprintf(" at VTEP %s, %s on the wire", b.VTEP, b.Wire)
	}
	if b.VLAN != 0 {
		text += fmt.Sprintf(", tag %d", b.VLAN)
	}
	if b.Source.IsValid() {
		text += ", from " + b.Source.String()
	}
	if b.Asked != nil {
		text += askedTexts[b.Asked.State]
		if b.Asked.At.IsValid() {
			text += b.Asked.At.String()
		}
	}
	return fmt.Sprintf("%s, MTU %d", text, b.MTU)
}

// askedTexts say what a flow asks for in its client's place.
var askedTexts = map[string]string{"open": ", asks to be redirected", "plain": ", not redirected", "taken": ", redirected to "}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// EndText writes an address, and its port unless that is 0.
func EndText(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// NameGenerations adds to the candidates of a flow which generations of the service's log
// place it on them, the newest first.
func NameGenerations(e *model.Explanation, log model.Log, placements *engine.Placements) {
	if e.Service == nil || e.Flow == nil || e.Slot == nil {
		return
	}
	f := model.Flow{Segment: e.Flow.Segment, Source: e.Flow.Source.Addr(), Destination: e.Flow.Destination.Addr(),
		SourcePort: e.Flow.Source.Port(), DestinationPort: e.Flow.Destination.Port(), Protocol: e.Flow.Protocol}
	salt := e.Service.ID.Salt()
	for i := range log.Generations {
		g := &log.Generations[i]
		for tier := range g.Tiers() {
			in := g.InTier(uint8(tier))
			owner, backup := placements.Of(&in, f, salt, i == min(log.Coming, len(log.Generations)-1))
			note(e, owner, model.ExplainedGeneration{Number: g.Number})
			note(e, backup, model.ExplainedGeneration{Number: g.Number, Backup: true})
		}
	}
}

// note adds a generation to each row's candidate with this address.
func note(e *model.Explanation, backend netip.AddrPort, g model.ExplainedGeneration) {
	for _, slot := range []*model.ExplainedSlot{e.Slot, e.Before} {
		if slot == nil || !backend.IsValid() {
			continue
		}
		for i := range slot.Candidates {
			if c := &slot.Candidates[i]; c.Backend == backend {
				c.Generations = append(c.Generations, g)
			}
		}
	}
}
