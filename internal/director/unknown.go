package director

import (
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// unknownLasts is how long packets that were dropped are told of after the last one: what a client repeats comes ever
// more rarely.
const unknownLasts = time.Minute

// unknown follows the counters of packets that are dropped because nothing says that their VTEP is one of the segment,
// or where their client is: nobody else would hear of it. The zero value has read nothing.
type unknown struct {
	read   bool
	totals [len(unknownReasons)]uint64
	last   [len(unknownReasons)]time.Time // when the counter has last grown; zero: never
}

// unknownReasons has a row for each reason of such packets.
var unknownReasons = [...]struct{ reason, text, fix string }{
	{"drop_overlay_peer", "packets of tenants' networks are dropped (drop_overlay_peer): nothing says that the VTEP from which they come is one of their segment",
		"see which VTEP and VNI by weir capture --reason drop_overlay_peer, and name the client in segments[].hosts, or its VTEP in director.vtep.peers, and in segments[].peers where the segment has some"},
	{"drop_overlay_host", "replies of nat to clients in tenants' networks are dropped (drop_overlay_host): nothing says where in the segment the client is",
		"see which client by weir capture --reason drop_overlay_host, and name it in segments[].hosts, or the segment's router in segments[].gateway"},
	{"drop_overlay_option", "packets of tenants' networks in Geneve are dropped (drop_overlay_option): they have a critical option that weir does not know",
		"see from which VTEP by weir capture --reason drop_overlay_option, and keep it from sending the option to directors"},
}

// counters are the reasons that unknown follows.
func (*unknown) counters() (reasons []string) {
	for _, row := range unknownReasons {
		reasons = append(reasons, row.reason)
	}
	return reasons
}

// take takes the counters, in the order of unknownReasons. What the first reading counts happened earlier.
func (u *unknown) take(totals []uint64, now time.Time) {
	for i, total := range totals {
		if u.read && total != u.totals[i] {
			u.last[i] = now
		}
		u.totals[i] = total
	}
	u.read = true
}

// problems are those of packets that were just dropped. The counters are of the whole director: no segment is named
// but those that can be meant.
func (u *unknown) problems(c *model.Config, now time.Time) (found []model.Problem) {
	for i, row := range unknownReasons {
		if u.last[i].IsZero() || now.Sub(u.last[i]) > unknownLasts {
			continue
		}
		p := model.Problem{Part: row.reason, Severity: model.SeverityWarning, Text: row.text, Fix: row.fix}
		if row.reason == "drop_overlay_host" {
			p.Text += withoutGateway(c)
		}
		found = append(found, p)
	}
	return found
}

// withoutGateway names the segments with services in nat that have no gateway of the VIP's family.
func withoutGateway(c *model.Config) string {
	var all []string
	for i := range c.Services {
		s := &c.Services[i]
		if s.Mode != model.NAT || !s.Segment.IsOverlay() {
			continue
		}
		at := slices.IndexFunc(c.Segments, func(of model.SegmentSettings) bool { return of.ID == s.Segment })
		has := at >= 0 && slices.ContainsFunc(c.Segments[at].Gateway, func(a netip.Addr) bool { return a.Is4() == s.VIP.Is4() })
		if name := s.Segment.String(); !has && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return "; no gateway in " + model.Some(all)
}
