package group

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

func settingsOf(c *model.Config) Settings { return SettingsOf(c, PlacingOf(c.Services)) }

// TestSettingsAreCompared: what directors may not share, and what they must.
func TestSettingsAreCompared(t *testing.T) {
	t.Parallel()
	own, other := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	file := func(change func(c *model.Config)) *model.Config {
		c := &model.Config{
			Director: model.Director{Group: []netip.Addr{own, other}, SNAT: model.SNAT{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("192.0.2.8")}}},
			BGP:      model.BGP{ASN: 65001, RouterID: own},
			Services: []model.Service{{Name: "web", VIP: netip.MustParseAddr("203.0.113.1"), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80},
				Backends: []model.Backend{{Name: "a", Address: netip.MustParseAddr("10.0.1.1"), Weight: 1}, {Name: "b", Address: netip.MustParseAddr("10.0.1.2"), Weight: 1}}}},
		}
		c.SetDefaults()
		change(c)
		return c
	}
	apart := func(c *model.Config) {
		c.Director.SNAT.Addresses, c.BGP.RouterID = []netip.Addr{netip.MustParseAddr("192.0.2.9")}, other
	}
	for _, test := range []struct {
		name   string
		change func(c *model.Config)
		want   string
	}{
		{"nothing in common", func(*model.Config) {}, ""},
		{"one address of SNAT", func(c *model.Config) {
			c.Director.SNAT.Addresses = append(c.Director.SNAT.Addresses, netip.MustParseAddr("192.0.2.8"))
		},
			"10.0.0.3 has the same director.snat.addresses as this one, 192.0.2.8:"},
		{"the router ID", func(c *model.Config) { c.BGP.RouterID = own }, "10.0.0.3 has the same bgp.router-id as this one, 10.0.0.2:"},
		{"no BGP", func(c *model.Config) { c.BGP = model.BGP{} }, ""},
		{"the group in another order", func(c *model.Config) { c.Director.Group = []netip.Addr{other, own} }, ""},
		{"another group", func(c *model.Config) { c.Director.Group = []netip.Addr{other} }, "10.0.0.3 has director.group 10.0.0.3, and this one 10.0.0.2, 10.0.0.3:"},
		{"another flow-port", func(c *model.Config) { c.Director.FlowPort = new(uint16) }, "10.0.0.3 has director.flow-port 0, and this one 6082:"},
		{"another notice", func(c *model.Config) { c.Notice *= 2 }, "10.0.0.3 has notice 10s, and this one 5s:"},
		{"another weight", func(c *model.Config) { c.Services[0].Backends[0].Weight = 2 }, "such as 203.0.113.1:80/tcp: connections may break"},
		{"a drained backend", func(c *model.Config) { c.Services[0].Backends[0].State = model.Draining }, ""},
		{"other names, and another order", func(c *model.Config) {
			b := c.Services[0].Backends
			c.Services[0].Name, b[0], b[1] = "www", b[1], b[0]
		}, ""},
		{"another service", func(c *model.Config) { c.Services[0].Port = model.PortRange{First: 81, Last: 81} }, ""},
	} {
		text, err := json.Marshal(settingsOf(file(func(c *model.Config) { apart(c); test.change(c) })))
		if err != nil {
			t.Fatal(err)
		}
		theirs := writtenRun{DirectorRun: model.DirectorRun{Address: other, Version: "v1"}, Clock: time.Now()}
		if err := json.Unmarshal(text, &theirs.Settings); err != nil {
			t.Fatal(err)
		}
		mine := writtenRun{DirectorRun: model.DirectorRun{Address: own, Version: "v1"}, Also: []netip.Addr{own}, Settings: settingsOf(file(func(*model.Config) {}))}
		runs, s := []writtenRun{mine, theirs, {DirectorRun: model.DirectorRun{Address: netip.MustParseAddr("10.0.0.4")}}}, settings{}
		if err := s.compare(runs, &mine); err != nil {
			t.Errorf("%s: the first comparison says %v", test.name, err)
		}
		if err := s.compare(runs, &mine); err != nil {
			t.Errorf("%s: of one writing that is read twice it is said %v", test.name, err)
		}
		runs[1].Clock = runs[1].Clock.Add(renewFingerprint)
		got := ""
		if err := s.compare(runs, &mine); err != nil {
			got = err.Error()
		}
		if strings.Contains(got, "\n") || got == "" != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: it is said %q, want %q", test.name, got, test.want)
		}
		if err := s.compare(nil, &mine); err != nil {
			t.Errorf("%s: without the other director it is said %v", test.name, err)
		}
	}
}

// TestPlacingIsComparedByMeaning: each row is a service in the files of two directors.
func TestPlacingIsComparedByMeaning(t *testing.T) {
	t.Parallel()
	gue, nat, ipip := model.GUE, model.NAT, model.IPIP
	a, b := netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("2001:db8::/32")
	type change = func(s *model.Service)
	nothing := func(*model.Service) {}
	mode := func(m model.Mode) change { return func(s *model.Service) { s.Mode = m } }
	all := func(changes ...change) change {
		return func(s *model.Service) {
			for _, c := range changes {
				c(s)
			}
		}
	}
	fallback := func(m *model.Mode) change { return func(s *model.Service) { s.Fallback = m } }
	backendMode := func(m *model.Mode) change { return func(s *model.Service) { s.Backends[0].Mode = m } }
	eachMode := func(m *model.Mode) change {
		return func(s *model.Service) { s.Backends[0].Mode, s.Backends[1].Mode = m, m }
	}
	ranges := func(list ...netip.Prefix) change { return func(s *model.Service) { s.SourceRanges = list } }
	targets := func(list ...netip.Prefix) change { return func(s *model.Service) { s.RedirectTo = list } }
	quic := func(ids ...uint8) change {
		return func(s *model.Service) {
			for _, id := range ids {
				s.QUIC = append(s.QUIC, model.QUICConfig{ID: id, NonceLength: 8})
			}
		}
	}
	serverID := func(ids model.ServerIDs) change { return func(s *model.Service) { s.Backends[0].ServerID = ids } }
	for _, test := range []struct {
		name        string
		here, there change
		same        bool
	}{
		{"the next hop", nothing, func(s *model.Service) { s.Backends[0].MAC = model.MAC{2, 0, 0, 0, 0, 1} }, true},
		{"the tag", nothing, func(s *model.Service) { s.Backends[0].VLAN = 7 }, true},
		{"the MTU", nothing, func(s *model.Service) { s.Backends[0].MTU = 1400 }, true},
		{"the fallback is the default", mode(model.Redirect), all(mode(model.Redirect), fallback(&gue)), true},
		{"another fallback", mode(model.Redirect), all(mode(model.Redirect), fallback(&nat)), false},
		{"a backend's mode is the service's", mode(gue), all(mode(gue), backendMode(&gue)), true},
		{"a backend's mode is another", mode(gue), all(mode(gue), backendMode(&ipip)), false},
		{"one backend of two has the same mode", all(mode(ipip), backendMode(&gue)), mode(gue), false},
		{"all backends have their own mode", all(mode(ipip), eachMode(&gue)), mode(gue), true},
		{"a backend that is not redirected", mode(model.Redirect), all(mode(model.Redirect), backendMode(&gue)), false},
		{"the order of source-ranges", ranges(a, b), ranges(b, a), true},
		{"other source-ranges", ranges(a, b), ranges(a), false},
		{"the order of redirect-to", targets(a, b), targets(b, a), true},
		{"other redirect-to", targets(a), targets(b), false},
		{"the order of quic", quic(0, 1), quic(1, 0), true},
		{"other quic", quic(0), quic(1), false},
		{"server IDs that no configuration has", all(quic(0), serverID(model.SameServerID("x"))), all(quic(0), serverID(model.ServerIDs{"x"})), true},
		{"other server IDs", all(quic(0), serverID(model.ServerIDs{"x"})), all(quic(0), serverID(model.ServerIDs{"y"})), false},
	} {
		of := func(c change) string {
			s := &model.Service{Backends: []model.Backend{{Address: netip.MustParseAddr("10.0.1.1")}, {Address: netip.MustParseAddr("10.0.1.2")}}}
			c(s)
			return placing(s)
		}
		if here, there := of(test.here), of(test.there); here == there != test.same || here == "" {
			t.Errorf("%s: the fingerprints are %s and %s, the same: want %v", test.name, here, there, test.same)
		}
	}
}

// TestSettingsOfOneDirector: a director with two addresses is one, and one of another version is not
// judged by fingerprints.
func TestSettingsOfOneDirector(t *testing.T) {
	t.Parallel()
	says := func(version string, addresses ...string) (runs []writtenRun) {
		r := writtenRun{DirectorRun: model.DirectorRun{Version: version}, Settings: Settings{
			Values: map[string][]string{"director.snat.addresses": {"192.0.2.7"}}, Services: map[string]string{"203.0.113.1:80/tcp": version}}}
		for _, a := range addresses {
			r.Also = append(r.Also, netip.MustParseAddr(a))
		}
		for _, r.Address = range r.Also {
			runs = append(runs, r)
		}
		return runs
	}
	mine, s := says("v1", "10.0.0.2", "2001:db8::2"), settings{}
	runs := append(mine, says("v2", "10.0.0.3", "2001:db8::3")...)
	_ = s.compare(runs, &mine[0])
	for i := range runs {
		runs[i].Clock = time.Now() // written again
	}
	if err := s.compare(runs, &mine[0]); err == nil || strings.Count(err.Error(), "has the same") != 1 || !strings.Contains(err.Error(), "10.0.0.3 has the same director.snat.addresses") {
		t.Errorf("of one other director with the same address of SNAT it is said %v", err)
	}
}

// TestSettingsOfAnAddressBefore: what this process, or the one before it, has written by an address
// that it had in the group before is its own, until the lease ends.
func TestSettingsOfAnAddressBefore(t *testing.T) {
	t.Parallel()
	s := settings{}
	mine := writtenRun{DirectorRun: model.DirectorRun{Started: time.Now().UTC()}, Clock: time.Now(), Also: []netip.Addr{netip.MustParseAddr("10.0.0.3")},
		Settings: Settings{Values: map[string][]string{"director.snat.addresses": {"192.0.2.7"}}}}
	before := mine
	before.Also = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	before.Address = before.Also[0]
	process := before
	process.Started = before.Started.Add(-time.Hour)
	for range livesFor {
		if err := s.compare([]writtenRun{before}, &mine); err != nil {
			t.Errorf("of its own former address it says %v", err)
		}
	}
	for range livesFor {
		if err := s.compare([]writtenRun{process}, &mine); err != nil {
			t.Errorf("of the process before it says %v", err)
		}
	}
}

// TestSettingsAreFew: a file may have thousands of services.
func TestSettingsAreFew(t *testing.T) {
	t.Parallel()
	c := &model.Config{}
	for i := range 3 * mostServices {
		c.Services = append(c.Services, model.Service{VIP: netip.MustParseAddr("203.0.113." + strconv.Itoa(i%200)), Port: model.PortRange{First: uint16(i), Last: uint16(i)}})
	}
	if got := len(PlacingOf(c.Services)); got != mostServices {
		t.Errorf("%d services are compared, want %d", got, mostServices)
	}
}
