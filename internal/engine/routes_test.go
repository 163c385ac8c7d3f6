package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"weir.io/weir/internal/model"
)

// at returns a service of two backends at a VIP, in these states.
func at(vip string, states ...model.BackendState) model.Service {
	s := web(len(states))
	s.Name, s.VIP = vip, netip.MustParseAddr(vip)
	for i, state := range states {
		s.Backends[i].State = state
	}
	return s
}

func announcing(services ...model.Service) model.Config {
	c := config(services...)
	c.BGP = model.BGP{ASN: 65001, RouterID: netip.MustParseAddr("10.0.0.1"), Neighbors: []model.BGPNeighbor{{Address: netip.MustParseAddr("10.0.0.2"), ASN: 65000}}}
	return c
}

// told writes routes as tests want them.
func told(routes []model.Route) string {
	var list []string
	for _, r := range routes {
		text := r.Prefix.String()
		if r.Segment != (model.Segment{}) {
			text = r.Segment.String() + "/" + text
		}
		if len(r.Attributes.Communities) > 0 {
			text += fmt.Sprint(r.Attributes.Communities)
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}

func TestRoutes(t *testing.T) {
	const up, drains, down = model.Active, model.Draining, model.Down
	least := func(s model.Service, n uint32) model.Service { s.MinHealthy = &n; return s }
	port := func(s model.Service, port uint16) model.Service {
		s.Name, s.Port = s.Name+"-other", model.PortRange{First: port, Last: port}
		return s
	}
	probed := func(s model.Service, panics uint8) model.Service {
		s.Health = &model.HealthCheck{Kind: model.CheckTCP, Panic: &panics}
		return s
	}
	sick := at("203.0.113.1", up)
	ill := Health{{Service: sick.ID(), Backend: sick.Backends[0].Endpoint()}: model.HealthDown}
	in := func(id uint32, s model.Service) model.Service {
		s.Segment = model.Segment{Kind: model.SegmentVLAN, ID: id}
		return s
	}
	of := func(id uint32, p model.BGPPrefix) model.BGPPrefix {
		p.Segment = model.Segment{Kind: model.SegmentVLAN, ID: id}
		return p
	}
	prefix := func(p string, a model.Announce, community uint32) model.BGPPrefix {
		return model.BGPPrefix{Prefix: netip.MustParsePrefix(p), Announce: a,
			Attributes: model.BGPAttributes{Communities: []model.Community{{Parts: [3]uint32{1, community}}}}}
	}
	for name, test := range map[string]struct {
		services []model.Service
		prefixes []model.BGPPrefix
		health   Health
		want     string
	}{
		"both families":             {services: []model.Service{at("2001:db8::1", up), at("203.0.113.1", up)}, want: "203.0.113.1/32 2001:db8::1/128"},
		"no backend":                {services: []model.Service{at("203.0.113.1")}},
		"one of two":                {services: []model.Service{at("203.0.113.1", up, down)}, want: "203.0.113.1/32"},
		"none of two":               {services: []model.Service{at("203.0.113.1", down, down)}},
		"drains":                    {services: []model.Service{at("203.0.113.1", drains, down)}, want: "203.0.113.1/32"},
		"fewer than it needs":       {services: []model.Service{least(at("203.0.113.1", up, down), 2)}},
		"as many as it needs":       {services: []model.Service{least(at("203.0.113.1", up, up), 2)}, want: "203.0.113.1/32"},
		"unhealthy":                 {services: []model.Service{probed(at("203.0.113.1", up), 0)}, health: ill},
		"all are used":              {services: []model.Service{probed(at("203.0.113.1", up), 20)}, health: ill},
		"enough in spite of panic":  {services: []model.Service{probed(at("203.0.113.1", up, up), 100)}, health: ill, want: "203.0.113.1/32"},
		"too few in spite of panic": {services: []model.Service{least(probed(at("203.0.113.1", up, up), 100), 2)}, health: ill},
		"whatever probes say":       {services: []model.Service{least(probed(at("203.0.113.1", up), 20), 0)}, health: ill, want: "203.0.113.1/32"},
		"whatever is left":          {services: []model.Service{least(at("203.0.113.1", down), 0)}, want: "203.0.113.1/32"},
		"one of its services is up": {services: []model.Service{at("203.0.113.1", down), port(at("203.0.113.1", up), 81)}, want: "203.0.113.1/32"},
		"in a segment":              {services: []model.Service{in(7, at("203.0.113.1", up))}, want: "vlan:7/203.0.113.1/32"},
		"the same in several":       {services: []model.Service{in(9, at("203.0.113.1", up)), at("203.0.113.1", up), in(7, at("203.0.113.1", up))}, want: "203.0.113.1/32 vlan:7/203.0.113.1/32 vlan:9/203.0.113.1/32"},
		"down in one of them":       {services: []model.Service{in(9, at("203.0.113.1", down)), at("203.0.113.1", down), in(7, at("203.0.113.1", up))}, want: "vlan:7/203.0.113.1/32"},
		"a prefix of one of them": {services: []model.Service{at("203.0.113.1", up), in(7, at("203.0.113.1", up)), in(9, at("203.0.113.1", up))},
			prefixes: []model.BGPPrefix{of(7, prefix("203.0.113.0/24", model.AnnouncePrefix, 5)), of(9, prefix("0.0.0.0/0", model.AnnounceNothing, 6))}, want: "203.0.113.1/32 vlan:7/203.0.113.0/24[1:5]"},
		"a prefix for all":      {services: []model.Service{at("203.0.113.1", up), at("203.0.113.2", up), at("203.0.114.1", up)}, prefixes: []model.BGPPrefix{prefix("203.0.113.0/24", model.AnnouncePrefix, 5)}, want: "203.0.113.0/24[1:5] 203.0.114.1/32"},
		"a prefix with none up": {services: []model.Service{at("203.0.113.1", down)}, prefixes: []model.BGPPrefix{prefix("203.0.113.0/24", model.AnnouncePrefix, 5)}},
		"nothing at all":        {services: []model.Service{at("203.0.113.1", up), at("2001:db8::1", up)}, prefixes: []model.BGPPrefix{prefix("0.0.0.0/0", model.AnnounceNothing, 7), prefix("::/0", model.AnnounceNothing, 7)}},
		"nothing but one":       {services: []model.Service{at("203.0.113.1", up), at("203.0.114.1", up)}, prefixes: []model.BGPPrefix{prefix("0.0.0.0/0", model.AnnounceNothing, 7), prefix("203.0.114.0/24", model.AnnounceHosts, 5)}, want: "203.0.114.1/32[1:5]"},
		"the longest prefix": {services: []model.Service{at("203.0.113.1", up), at("203.0.113.129", up), at("203.0.113.255", up)}, prefixes: []model.BGPPrefix{
			prefix("203.0.113.0/24", model.AnnouncePrefix, 5), prefix("203.0.113.128/25", model.AnnounceHosts, 6), prefix("203.0.113.255/32", model.AnnounceNothing, 7)},
			want: "203.0.113.0/24[1:5] 203.0.113.129/32[1:6]"},
	} {
		c := announcing(test.services...)
		c.BGP.Prefixes = test.prefixes
		_, report := Plan(c, nil, test.health)
		if got := told(Routes(&c, &report)); got != test.want {
			t.Errorf("%s: %q is announced, want %q", name, got, test.want)
		}
	}
	c := config(at("203.0.113.1", up))
	_, report := Plan(c, nil, nil)
	if got := Routes(&c, &report); got != nil {
		t.Errorf("without bgp %v is announced", got)
	}
}

// sinks notes in which order the sinks are set.
type sinks struct {
	mu   sync.Mutex
	said []string
	fail error
}

func (s *sinks) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, text)
}

type forwards struct{ *sinks }

func (f forwards) Set(table model.Table) error {
	f.note(fmt.Sprintf("forward %d", len(table.Services)))
	return f.fail
}

type announces struct{ *sinks }

func (a announces) Set(now model.Announcement) {
	text := fmt.Sprintf("tell %d: %s", len(now.BGP.Neighbors), told(now.Routes))
	if len(now.Hooks) > 0 {
		text += fmt.Sprintf("; call %d: %v", len(now.Hooks), now.VIPs)
	}
	for _, i := range now.Neighbor.Interfaces {
		text += fmt.Sprintf("; answer on %s as one of %v: %v", i.Name, now.Group, now.VIPs)
	}
	a.note(text)
}

// A new VIP is forwarded before it is announced, and a removed one is withdrawn before
// forwarding ends. Nobody is told anything before the first table is in the kernel, nor
// before it is asked for; then everything.
func TestOrderOfSinks(t *testing.T) {
	one, two := at("203.0.113.1", model.Active), at("203.0.113.2", model.Active)
	s := &sinks{fail: errFull}
	e := New(Deps{Forwarder: forwards{s}, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go e.Run(ctx)
	from := func(fail error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.said, s.fail = nil, fail
	}
	to := func(c model.Config, want ...string) {
		t.Helper()
		_ = e.Apply(c, nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		if !slices.Equal(s.said[:min(len(s.said), len(want))], want) {
			t.Errorf("the sinks were told %q, want %q", s.said, want)
		}
	}
	apply := func(fail error, c model.Config, want ...string) {
		t.Helper()
		from(fail)
		to(c, want...)
	}
	apply(errFull, announcing(one), "forward 1")
	apply(nil, announcing(one, two), "forward 2")
	apply(nil, announcing(one), "forward 1")
	from(nil)
	e.Announce(announces{s})
	to(announcing(one), "tell 1: 203.0.113.1/32", "forward 1", "tell 1: 203.0.113.1/32")
	apply(nil, announcing(one, two), "forward 2", "tell 1: 203.0.113.1/32 203.0.113.2/32")
	apply(errFull, announcing(two), "tell 1: 203.0.113.2/32", "forward 1")
	apply(nil, announcing(two), "forward 1", "tell 1: 203.0.113.2/32")
	apply(nil, config(two), "tell 1: ", "forward 1", "tell 0: ")
	called := func(services ...model.Service) model.Config {
		c := config(services...)
		c.Hooks = []model.Hook{{Name: "cloud"}}
		return c
	}
	apply(nil, called(two, one), "forward 2", "tell 0: ; call 1: [203.0.113.1 203.0.113.2]")
	apply(nil, called(two), "tell 0: ; call 1: [203.0.113.2]", "forward 1", "tell 0: ; call 1: [203.0.113.2]")
	apply(nil, called(at("203.0.113.2", model.Down)), "tell 0: ; call 1: []", "forward 1", "tell 0: ; call 1: []")
	answering := func(on string, services ...model.Service) model.Config {
		c := config(services...)
		c.Director.Neighbor.Interfaces = []model.NeighborInterface{{Name: on}}
		c.Director.Group = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
		return c
	}
	const eth0, eth1 = "tell 0: ; answer on eth0 as one of [10.0.0.1]: ", "tell 0: ; answer on eth1 as one of [10.0.0.1]: "
	apply(nil, answering("eth0", two, one), "forward 2", eth0+"[203.0.113.1 203.0.113.2]")
	apply(nil, answering("eth1", two), eth0+"[203.0.113.2]", "forward 1", eth1+"[203.0.113.2]")
}
