package forecast

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// risks are the reasons why connections may end, each with when they end and how it is found: the
// reverse of what docs/internals/consistency.md promises.
var risks = []struct {
	reason model.RiskReason
	when   model.RiskWhen
	find   func(*Change, *model.PlannedService) (model.Risk, bool)
}{
	{model.RiskServiceRemoved, model.WhenApplied, serviceRemoved},
	{model.RiskBackendRemoved, model.WhenApplied, backendRemoved},
	{model.RiskBackendDown, model.WhenApplied, backendDown},
	{model.RiskTranslation, model.WhenApplied, translation},
	{model.RiskAsks, model.WhenApplied, stopsAsking},
	{model.RiskTunnel, model.WhenUnready, tunnel},
	{model.RiskLeavesGUE, model.WhenIdle, leavesGUE},
	{model.RiskAffinity, model.WhenIdle, affinity},
	{model.RiskNoAgents, model.WhenIdle, noAgents},
	{model.RiskMemoryAlone, model.WhenDirectors, memoryAlone},
	{model.RiskTiers, model.WhenDirectors, tiers},
	{model.RiskFullNAT, model.WhenDirectors, fullNAT},
	{model.RiskNoNotice, model.WhenLate, noNotice},
	{model.RiskMaxRetention, model.WhenOld, maxRetention},
	{model.RiskQUIC, model.WhenApplied, quicKeys},
	{model.RiskSourceRanges, model.WhenApplied, sourceRanges},
	{model.RiskKernelSources, model.WhenApplied, kernelSources},
}

func serviceRemoved(c *Change, p *model.PlannedService) (model.Risk, bool) {
	if c.After != nil {
		return model.Risk{}, false
	}
	return c.counted(model.Risk{Text: "its packets are not forwarded any more: all of its connections end"}, p, func(netip.AddrPort) bool { return true })
}

func backendRemoved(c *Change, p *model.PlannedService) (model.Risk, bool) {
	if c.Before == nil || c.After == nil {
		return model.Risk{}, false
	}
	gone, active := map[netip.AddrPort]bool{}, false
	r := model.Risk{Text: "a backend that is removed leaves all rows at once"}
	for _, b := range p.Backends {
		key := netip.AddrPortFrom(b.Address, b.Port)
		if b.After != nil || b.Open != nil && *b.Open == 0 && c.remembered(key) == 0 {
			continue // no connections there
		}
		gone[key] = true
		active = active || b.Before.State == model.Active && b.Before.Slots > 0
		r.Backends = append(r.Backends, b.Name)
	}
	if active {
		r.Text += ": let it drain first, and remove it when its connections have ended"
	} else if since := c.placedUntil(gone); !since.IsZero() {
		r.Text += fmt.Sprintf(": it has had no new connections for %v, and those that live longer end", c.Now.Sub(since).Round(time.Second))
	}
	r, _ = c.counted(r, p, func(b netip.AddrPort) bool { return gone[b] })
	return r, len(gone) > 0
}

// placedUntil returns since when the last of these backends has owned no slots; zero: one owns
// some, or the log does not remember that it did.
func (c *Change) placedUntil(backends map[netip.AddrPort]bool) (until time.Time) {
	for i := range c.WasLog.Generations {
		g := &c.WasLog.Generations[i]
		if slices.ContainsFunc(g.Members, func(m model.Member) bool { return backends[m.Backend] }) {
			return until
		}
		until = g.Places()
	}
	return time.Time{}
}

func backendDown(c *Change, p *model.PlannedService) (model.Risk, bool) {
	r, down := model.Risk{Text: "a backend that is down gets nothing: its connections go to others, which do not know them"}, map[netip.AddrPort]bool{}
	for _, b := range p.Backends {
		if b.Before != nil && b.After != nil && b.Before.State != model.Down && b.After.State == model.Down {
			down[netip.AddrPortFrom(b.Address, b.Port)] = true
			r.Backends = append(r.Backends, b.Name)
		}
	}
	r, _ = c.counted(r, p, func(b netip.AddrPort) bool { return down[b] })
	return r, len(down) > 0
}

// eachKept visits the backends that exist before and after, with how packets get to them.
func (c *Change) eachKept(visit func(b *model.Backend, was, is model.Mode)) {
	c.eachPair(func(old, b *model.Backend) { visit(b, old.ModeIn(*c.Before), b.ModeIn(*c.After)) })
}

// eachPair visits the backends that exist before and after.
func (c *Change) eachPair(visit func(old, b *model.Backend)) {
	if c.Before == nil || c.After == nil {
		return
	}
	before := map[netip.AddrPort]*model.Backend{}
	for i := range c.Before.Backends {
		before[c.Before.Backends[i].Endpoint()] = &c.Before.Backends[i]
	}
	for i := range c.After.Backends {
		b := &c.After.Backends[i]
		if old := before[b.Endpoint()]; old != nil {
			visit(old, b)
		}
	}
}

func translation(c *Change, p *model.PlannedService) (model.Risk, bool) {
	r, other := model.Risk{Text: "its sockets have other addresses before and after: mode nat, or snat, comes or goes"}, map[netip.AddrPort]bool{}
	c.eachKept(func(b *model.Backend, was, is model.Mode) {
		full := func(s *model.Service, m model.Mode) bool { return m == model.NAT && s.SNAT }
		if (was == model.NAT) != (is == model.NAT) || full(c.Before, was) != full(c.After, is) {
			other[b.Endpoint()] = true
			r.Backends = append(r.Backends, b.Name)
		}
	})
	r, _ = c.counted(r, p, func(b netip.AddrPort) bool { return other[b] })
	return r, len(other) > 0
}

func stopsAsking(c *Change, p *model.PlannedService) (model.Risk, bool) {
	r := model.Risk{Text: "connections that others have taken, when they were asked to, are at ports that only a service with ask-redirect goes to"}
	if c.Before == nil || c.After == nil || !c.Before.AskRedirect || c.After.AskRedirect || !c.After.SNAT {
		return r, false
	}
	return r, true
}

func tunnel(c *Change, _ *model.PlannedService) (model.Risk, bool) {
	r := model.Risk{Text: "packets come to it in another way from now on: it has to know the tunnel, and answer for the VIP, before"}
	c.eachPair(func(old, b *model.Backend) {
		was, is := old.ModeIn(*c.Before), b.ModeIn(*c.After)
		if (was != is || old.Host != b.Host) && is != model.NAT && was != model.NAT {
			r.Backends = append(r.Backends, b.Name)
		}
	})
	return r, len(r.Backends) > 0
}

func leavesGUE(c *Change, _ *model.PlannedService) (model.Risk, bool) {
	r := model.Risk{}
	c.eachKept(func(b *model.Backend, was, is model.Mode) {
		if was == model.GUE && is != model.GUE && is != model.NAT {
			r.Backends = append(r.Backends, b.Name)
		}
	})
	r.Text = fmt.Sprintf("%d slots may have connections of several backends, and without mode gue a director guesses whose they are: wait until the service has one generation", c.Was.Shared)
	return r, len(r.Backends) > 0 && c.Was.Shared > 0
}

// guessed reports whether directors decide, without agents, which backend has a connection that no
// director remembers: in modes other than gue, or for datagrams. Full NAT remembers all.
func (c *Change) guessed() bool {
	if c.Before.AmongAll() && c.After.AmongAll() {
		return false // directors do not guess by slots: see memoryAlone
	}
	is := false
	c.eachKept(func(_ *model.Backend, was, _ model.Mode) {
		is = is || was != model.GUE && (was != model.NAT || !c.Before.SNAT)
	})
	return is || c.Before.Protocol.Datagrams() && !c.Shift.Before.Reported
}

func affinity(c *Change, _ *model.PlannedService) (model.Risk, bool) {
	if c.Before == nil || c.After == nil || c.Before.Affinity == c.After.Affinity || !c.guessed() {
		return model.Risk{}, false
	}
	return model.Risk{Text: fmt.Sprintf("another affinity gives every flow another slot: directors remember what sends a packet within %v, and no agent knows the rest", c.After.RetentionOrDefault())}, true
}

func noAgents(c *Change, p *model.PlannedService) (model.Risk, bool) {
	if c.Before == nil || c.After == nil || p.Moved == 0 || c.Before.Affinity != c.After.Affinity || !c.guessed() {
		return model.Risk{}, false
	}
	text := fmt.Sprintf("no agent knows the connections in the %d slots that move: directors remember those that send a packet while older generations stay, which is for %v at least", p.Moved, c.After.RetentionOrDefault())
	if c.Group {
		text += "; of those that a director which comes or goes meanwhile has seen last, and not told yet, some end, too"
	}
	return model.Risk{Text: text}, true
}

// memoryAlone is what services pay whose policies look at no slot, in a group: also those that
// are new.
func memoryAlone(c *Change, _ *model.PlannedService) (model.Risk, bool) {
	if c.After == nil || !c.Group || !c.After.AmongAll() || c.After.SNAT {
		return model.Risk{}, false
	}
	return model.Risk{Text: fmt.Sprintf("policy %s places connections where no slot says: those that a lost director had, and had not told yet, end", c.After.Policy)}, true
}

// flowBytes is what flow memory takes for a flow of IPv4. One of IPv6 takes twice as much.
const flowBytes = 32

// tiers is what services pay with tiers where directors remember flows, also those that are new: none is remembered while
// the first tier gets new connections, and all are while another one does.
func tiers(c *Change, _ *model.PlannedService) (model.Risk, bool) {
	if c.After == nil || !c.After.Tiered() || c.After.AmongAll() || !slices.ContainsFunc(c.After.Backends, func(b model.Backend) bool {
		mode := b.ModeIn(*c.After)
		return (mode != model.GUE || c.After.Protocol == model.UDP) && (mode != model.NAT || !c.After.SNAT)
	}) {
		return model.Risk{}, false
	}
	bytes := flowBytes
	if c.After.VIP.Is6() {
		bytes *= 2
	}
	text := fmt.Sprintf("while a tier below the first gets new connections, flow memory takes %d bytes for each flow of the service", bytes)
	var seen float64
	for _, rate := range c.Seen {
		seen += rate.Connections
	}
	if seen > 0 {
		text += fmt.Sprintf(", of which %.0f are opened in a second", math.Ceil(seen))
	}
	return model.Risk{Text: text + ": those that have no room there, or that a lost director had not told yet, end when another tier is used"}, true
}

func fullNAT(c *Change, p *model.PlannedService) (model.Risk, bool) {
	if c.Before == nil || c.After == nil || !c.Before.SNAT || !c.Group || p.Moved == 0 {
		return model.Risk{}, false
	}
	return model.Risk{Text: "one director alone knows the translation of a connection, and its packets have to come by that one: do not change directors meanwhile"}, true
}

func noNotice(c *Change, _ *model.PlannedService) (model.Risk, bool) {
	if c.Before == nil || c.After == nil || !c.Group || len(c.WasLog.Generations) == 0 || c.Shift.After == nil {
		return model.Risk{}, false
	}
	what := ""
	switch {
	case c.Before.Affinity != c.After.Affinity:
		what = "affinity"
	case c.Is.Slots != c.Was.Slots:
		what = "ring size"
	case c.Before.Policy != c.After.Policy:
		what = "policy"
	}
	return model.Risk{Text: "another " + what + " has no notice: what other directors place by the one before, or by this one, while they do not agree is not found by all"}, what != ""
}

func maxRetention(c *Change, _ *model.PlannedService) (model.Risk, bool) {
	if c.Before == nil || c.After == nil || c.After.MaxRetentionOrDefault() >= c.Before.MaxRetentionOrDefault() {
		return model.Risk{}, false
	}
	slots := 0
	var replaced time.Time
	for i := range c.WasLog.Generations {
		g := &c.WasLog.Generations[i]
		if i > 0 && g.Kept != nil && c.Now.Sub(replaced) > c.After.MaxRetentionOrDefault() {
			slots += g.Kept.Count()
		}
		replaced = g.Places()
	}
	return model.Risk{Text: fmt.Sprintf("agents may have connections in %d slots of generations that are older than the new max-retention, and leave the log: they end when directors or backends change again", slots)}, slots > 0
}

// keysGo reports whether the service has keys that it will not have: they are not shown, so no
// client could give them back.
func (c *Change) keysGo() bool {
	return c.Before != nil && slices.ContainsFunc(c.Before.QUIC, func(q model.QUICConfig) bool {
		return !q.Key.IsZero() && (c.After == nil || !slices.Contains(c.After.QUIC, q))
	})
}

func quicKeys(c *Change, _ *model.PlannedService) (model.Risk, bool) {
	if c.Before == nil || c.After == nil {
		return model.Risk{}, false
	}
	lost := slices.ContainsFunc(c.Before.QUIC, func(q model.QUICConfig) bool { return !slices.Contains(c.After.QUIC, q) })
	r := model.Risk{Text: "connection IDs that servers have given out name nobody any more: connections whose client has another address by now, or that are in slots which move, end"}
	ids := map[netip.AddrPort]model.ServerIDs{}
	for _, b := range c.Before.Backends {
		ids[b.Endpoint()] = b.ServerID
	}
	for _, b := range c.After.Backends {
		if old, had := ids[b.Endpoint()]; had && len(c.Before.QUIC) > 0 && old != b.ServerID {
			r.Backends = append(r.Backends, b.Name)
		}
	}
	return r, lost || len(r.Backends) > 0
}

func (c *Change) remembered(b netip.AddrPort) uint64 { return c.Remembered[b] }

// counted adds how many connections some backends are known to have: by their agents, if all of
// these report, else by the director's memory, if it has any.
func (c *Change) counted(r model.Risk, p *model.PlannedService, of func(netip.AddrPort) bool) (model.Risk, bool) {
	var reported, remembered uint64
	complete, some := true, false
	for _, b := range p.Backends {
		key := netip.AddrPortFrom(b.Address, b.Port)
		if b.Before == nil || !of(key) {
			continue
		}
		some = true
		remembered += c.remembered(key)
		if b.Open == nil {
			complete = false
			continue
		}
		reported += *b.Open
	}
	switch {
	case some && complete:
		r.Connections, r.CountedBy = &reported, model.CountedByAgents
	case remembered > 0:
		r.Connections, r.CountedBy = &remembered, model.CountedByMemory
	}
	return r, true
}
