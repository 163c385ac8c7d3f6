package forecast

import (
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
)

// Before a service gets tiers, plan says what flow memory will have to take; and the shares of its backends are those of the
// tier that gets new connections.
func TestTiersTakeMemory(t *testing.T) {
	for _, test := range []struct {
		name   string
		mode   model.Mode
		change func(s *model.Service)
		want   string
	}{
		{"no tiers", model.L2DSR, func(*model.Service) {}, ""},
		{"remembered", model.L2DSR, func(s *model.Service) { s.Backends[1].Tier = 1 }, "takes 32 bytes for each flow of the service, of which 31 are opened in a second"},
		{"agents find them", model.GUE, func(s *model.Service) { s.Backends[1].Tier = 1 }, ""},
		{"of UDP", model.GUE, func(s *model.Service) { s.Backends[1].Tier, s.Protocol = 1, model.UDP }, "takes 32 bytes"},
		{"full NAT", model.NAT, func(s *model.Service) { s.Backends[1].Tier, s.SNAT = 1, true }, ""},
		{"of IPv6", model.IPIP, func(s *model.Service) {
			s.Backends[1].Tier, s.VIP = 1, netip.MustParseAddr("2001:db8::1")
		}, "takes 64 bytes"},
	} {
		s := model.Service{Name: "web", VIP: netip.MustParseAddr("192.0.2.1"), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: test.mode}
		for i := range 2 {
			s.Backends = append(s.Backends, model.Backend{Name: "b", Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Weight: 100, State: model.Active})
		}
		before := s
		s.Backends = append([]model.Backend(nil), s.Backends...)
		test.change(&s)
		shifts := engine.Shifts(engine.Services{List: []model.Service{before}}, engine.Services{List: []model.Service{s}})
		c := Change{Shift: shifts[len(shifts)-1], Before: &before, After: &s, Down: func(b netip.AddrPort) bool { return b == s.Backends[0].Endpoint() },
			Seen: map[netip.AddrPort]model.Rate{s.Backends[0].Endpoint(): {Connections: 30.5}}, Reported: func(netip.AddrPort) *model.ReportedService { return nil }}
		if test.name == "of UDP" || test.name == "of IPv6" {
			c.Before = nil // another service
		}
		p := Of(&c)
		got := ""
		for _, r := range p.Risks {
			if r.Reason == model.RiskTiers {
				got = r.Text
			}
		}
		if !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%s: plan says %q, want %q", test.name, got, test.want)
		}
		if !s.Tiered() {
			continue
		}
		if a, b := p.Backends[0].After, p.Backends[1].After; a.Share != 0 || b.Share != 1 {
			t.Errorf("%s: the backend of tier 0 is down and has a share of %v, that of tier 1 has %v", test.name, a.Share, b.Share)
		}
	}
}
