package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"net/netip"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
)

var update = flag.Bool("update", false, "write the errors of testdata/*.bad.yaml as they are now")

// What is written is resolved: it names no check any more.
var comparable = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.IgnoreFields(model.Config{}, "NamedBy")}

func TestGoodFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.good.*")
	if err != nil || len(files) == 0 {
		t.Fatal("no good files:", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			c, err := config.Load(file)
			if err != nil {
				t.Fatal(err)
			}
			checkRoundTrip(t, c)
		})
	}
}

// checkRoundTrip writes a configuration and reads it again.
func checkRoundTrip(t *testing.T, c model.Config) {
	t.Helper()
	text, err := config.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := config.Parse("again.yaml", text)
	if err != nil {
		t.Fatalf("what weir wrote it does not read: %v\n%s", err, text)
	}
	if diff := cmp.Diff(c, again, comparable); diff != "" {
		t.Errorf("written and read again, the configuration differs (-first +again):\n%s", diff)
	}
}

// TestStored writes services as stores do, as JSON, and reads them again.
func TestStored(t *testing.T) {
	for _, file := range []string{"testdata/full.good.yaml", "testdata/quic.good.yaml", "testdata/health.good.yaml"} {
		c, err := config.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		stored := make([]model.StoredService, len(c.Services))
		for i, s := range c.Services {
			stored[i] = model.StoredService(s)
		}
		text, err := json.Marshal(stored)
		if err != nil {
			t.Fatal(err)
		}
		var again []model.StoredService
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatalf("what weir wrote it does not read: %v\n%s", err, text)
		}
		if diff := cmp.Diff(stored, again, comparable); diff != "" {
			t.Errorf("stored and read again, the services of %s differ (-first +again):\n%s", file, diff)
		}
	}
}

// TestBadFiles compares each testdata/x.bad.yaml's error with x.bad.txt.
func TestBadFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no bad files:", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = config.Parse(filepath.Base(file), text)
			if err == nil {
				t.Fatal("a bad file is accepted")
			}
			wantFile := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(wantFile, []byte(err.Error()+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, readErr := os.ReadFile(wantFile)
			if readErr != nil {
				t.Fatal(readErr)
			}
			if diff := cmp.Diff(string(want), err.Error()+"\n"); diff != "" {
				t.Errorf("another error than %s (-want +got):\n%s", wantFile, diff)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	c, err := config.Load("testdata/minimal.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := []model.Backend{
		{Name: "a", Address: netip.MustParseAddr("10.0.1.1"), Weight: 100, State: model.Active},
		{Name: "10.0.1.2", Address: netip.MustParseAddr("10.0.1.2"), Weight: 100, State: model.Active},
	}
	if diff := cmp.Diff(want, c.Services[0].Backends, comparable); diff != "" {
		t.Errorf("backends (-want +got):\n%s", diff)
	}
	if c.Director.XDP != model.XDPAuto || c.Director.Limits.Services != model.DefaultServices {
		t.Errorf("the director has no defaults: %+v", c.Director)
	}
	if c.Agent.UDPFlows == nil || *c.Agent.UDPFlows != model.DefaultUDPFlows {
		t.Errorf("the agent has no defaults: %+v", c.Agent)
	}
}

// TestFull checks that no key is lost on the way from the file.
func TestFull(t *testing.T) {
	c, err := config.Load("testdata/full.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := c.Services[0]
	if c.Agent.UDPFlows == nil || *c.Agent.UDPFlows != 0 {
		t.Errorf("agent: %+v", c.Agent)
	}
	if s.RingSize != 65537 || s.Affinity != model.AffinitySourceIP || s.Mode != model.GUE {
		t.Errorf("first service: %+v", s)
	}
	l2dsr := model.L2DSR
	want := model.Backend{
		Name: "beside", Address: netip.MustParseAddr("10.0.1.2"), State: model.Active,
		Mode: &l2dsr, MAC: model.MAC{2, 0, 0, 0, 0, 1}, VLAN: 7,
	}
	if diff := cmp.Diff(want, s.Backends[1], comparable); diff != "" {
		t.Errorf("second backend (-want +got):\n%s", diff)
	}
	if got := c.Services[1].Segment.String(); got != "vlan:100.200" {
		t.Errorf("segment %s, want vlan:100.200", got)
	}
	if got := fmt.Sprint(c.Directors); got != "[10.0.0.0/24 2001:db8::/64 192.0.2.7/32]" {
		t.Errorf("directors %s", got)
	}
	if got := c.Services[3].Port; !got.All() {
		t.Errorf("port %s, want all", got)
	}
}

func TestErrorsAreTyped(t *testing.T) {
	_, err := config.Parse("weir.yaml", []byte("services:\n- {name: a, vip: 203.0.113.1, protocol: tcp, port: 1, mode: ipip, backends: [{address: 10.0.0.1, weight: 70000}]}\n"))
	var one config.Error
	if !errors.As(err, &one) || one.Line != 2 || one.Path != "services[0].backends[0].weight" {
		t.Errorf("no typed error with line and path: %#v", err)
	}
	if want := "weir.yaml:2: services[0].backends[0].weight: 70000 is out of range 0 to 65535"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}

func TestLoadNamesMissingFile(t *testing.T) {
	_, err := config.Load("testdata/none.yaml")
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "testdata/none.yaml") {
		t.Errorf("error %v does not name the missing file", err)
	}
}

// TestManyServices reads 10,000 services of 4 backends.
func TestManyServices(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("director:\n  interfaces: [eth0]\n  limits: {services: 10000, ring-memory: 134217728}\nservices:\n")
	for i := range 10000 {
		fmt.Fprintf(&b, "- name: s%d\n  vip: 203.0.%d.%d\n  protocol: tcp\n  port: 443\n  mode: ipip\n  backends:\n", i, i>>8, i&255)
		for j := range 4 {
			fmt.Fprintf(&b, "  - {address: 10.%d.%d.%d}\n", j, i>>8, i&255)
		}
	}
	c, err := config.Parse("many.yaml", b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Services[9999].Backends[3].Address.String(); got != "10.3.39.15" {
		t.Errorf("last backend %s", got)
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := config.Parse("fuzz.yaml", text)
		if err == nil {
			checkRoundTrip(t, c)
			return
		}
		var typed config.Errors
		if !errors.As(err, &typed) || len(typed) == 0 {
			t.Errorf("not a typed error: %#v", err)
		}
	})
}

// TestBGP checks the same of what routers are told.
func TestBGP(t *testing.T) {
	c, err := config.Load("testdata/full.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	yes, no, source := true, false, netip.MustParseAddr("10.0.0.2")
	number := func(n uint32) *uint32 { return &n }
	community := func(large bool, parts ...uint32) model.Community {
		c := model.Community{Large: large}
		copy(c.Parts[:], parts)
		return c
	}
	want := model.BGP{
		ASN: 4200000001, RouterID: source, Listen: []netip.Addr{source, netip.MustParseAddr("2001:db8::2")},
		GracefulShutdown: model.Duration(2 * time.Second),
		Neighbors: []model.BGPNeighbor{{
			Address: netip.MustParseAddr("10.0.0.1"), ASN: 65000, Port: 1179, Source: &source, PasswordFile: "/etc/weir/bgp.password", TTL: 3,
			HoldTime: model.Duration(3 * time.Second), Keepalive: model.Duration(500 * time.Millisecond),
			GracefulRestart: &yes, RestartTime: model.Duration(5 * time.Minute), KeepWhenSilent: true, Families: []model.BGPFamily{model.BGPIPv4, model.BGPIPv6},
			BFD: &model.BGPNeighborBFD{Multihop: &no, Interfaces: []string{"eth0"}, Interval: model.Duration(50 * time.Millisecond), Multiplier: 5, TTLSecurity: 1,
				Authentication: &model.BFDAuthentication{Type: model.KeyedMD5, KeyID: 9, PasswordFile: "/etc/weir/bfd.password"}},
			NextHop: []netip.Addr{source, netip.MustParseAddr("2001:db8::2")},
			Attributes: model.BGPAttributes{MED: number(0), Prepend: 2, Communities: []model.Community{
				community(false, 65000, 100), community(true, 4200000001, 1, 2), community(false, 65535, 65281)}},
		}, {
			Address: netip.MustParseAddr("2001:db8::1"), ASN: 4200000001, Port: 179, Passive: true, TTLSecurity: 1,
			HoldTime: model.DefaultHoldTime, GracefulRestart: &no, RestartTime: model.DefaultRestartTime,
			BFD:      &model.BGPNeighborBFD{Interval: model.DefaultBFDInterval, Multiplier: model.DefaultBFDMultiplier},
			Families: []model.BGPFamily{model.BGPIPv6, model.BGPIPv4}, Attributes: model.BGPAttributes{LocalPref: number(200)},
		}},
		Prefixes: []model.BGPPrefix{
			{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Announce: model.AnnouncePrefix, Attributes: model.BGPAttributes{MED: number(10)}},
			{Prefix: netip.MustParsePrefix("203.0.113.7/32"), Announce: model.AnnounceNothing},
		},
	}
	if diff := cmp.Diff(want, c.BGP, comparable); diff != "" {
		t.Errorf("bgp (-want +got):\n%s", diff)
	}
	if least := c.Services[0].LeastHealthy(); least != 2 {
		t.Errorf("min-healthy is %d", least)
	}
	none, err := config.Load("testdata/minimal.good.yaml")
	if err != nil || !none.BGP.IsZero() || !none.BFD.IsZero() {
		t.Errorf("a file without bgp and bfd has %+v, %+v (%v)", none.BGP, none.BFD, err)
	}
}

// TestHooks checks the same of hooks.
func TestHooks(t *testing.T) {
	c, err := config.Load("testdata/full.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := []model.Hook{
		{Name: "cloud-route", Exec: []string{"/usr/local/sbin/vip-route", "--table", "7"}, Timeout: model.Duration(30 * time.Second)},
		{Name: "portal", URL: "https://portal.example/vips", TokenFile: "/etc/weir/portal.token", Timeout: model.DefaultHookTimeout},
	}
	if diff := cmp.Diff(want, c.Hooks); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

// TestBFD checks which sessions the neighbors of both kinds ask for.
func TestBFD(t *testing.T) {
	c, err := config.Load("testdata/full.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	address, ms := netip.MustParseAddr, func(n int) model.Duration { return model.Duration(time.Duration(n) * time.Millisecond) }
	want := []model.BFDSession{
		{Neighbor: address("10.0.0.1"), Source: address("10.0.0.2"), Interfaces: []string{"eth0"},
			Timers: model.BFDTimers{Interval: ms(50), Multiplier: 5}, RestartTime: model.Duration(5 * time.Minute), TTLSecurity: 1,
			Authentication: &model.BFDAuthentication{Type: model.KeyedMD5, KeyID: 9, PasswordFile: "/etc/weir/bfd.password"}},
		{Neighbor: address("2001:db8::1"), Interfaces: c.Director.Interfaces,
			Timers: model.BFDTimers{Interval: ms(100), Multiplier: 3}, RestartTime: model.DefaultRestartTime},
		{Neighbor: address("10.0.0.1"), Source: address("10.0.0.2"), Multihop: true, Interfaces: []string{"eth0"},
			Timers: model.BFDTimers{Interval: ms(40), Multiplier: 2}, RestartTime: model.Duration(90 * time.Second), TTLSecurity: 3,
			Authentication: &model.BFDAuthentication{Type: model.MeticulousKeyedSHA1, KeyID: 1, PasswordFile: "/etc/weir/bfd.password"}},
		{Neighbor: address("2001:db8::1:1"), Interfaces: c.Director.Interfaces,
			Timers: model.BFDTimers{Interval: ms(100), Multiplier: 3}, RestartTime: model.Duration(90 * time.Second)},
	}
	if diff := cmp.Diff(want, c.BFDSessions(nil), comparable); diff != "" {
		t.Errorf("BFD sessions (-want +got):\n%s", diff)
	}
	// Routers in between are expected where the session allows for them.
	n := &c.BGP.Neighbors[0]
	for _, d := range []struct {
		ttl, security uint8
		want          bool
	}{{0, 0, false}, {1, 0, false}, {2, 0, true}, {0, 1, false}, {0, 3, true}} {
		n.BFD.Multihop, n.TTL, n.TTLSecurity = nil, d.ttl, d.security
		if n.BFDMultihop() != d.want {
			t.Errorf("with ttl %d and ttl-security %d, multihop is %v", d.ttl, d.security, !d.want)
		}
	}
	// The BGP session's ttl-security is that of BFD, too, unless it has its own.
	for _, d := range []struct{ of, own, want uint8 }{{3, 0, 3}, {3, 255, 255}, {0, 0, 0}, {1, 0, 0}} {
		n.TTL, n.TTLSecurity, n.BFD.TTLSecurity = 0, d.of, d.own
		if got := c.BFDSessions(nil)[0].TTLSecurity; got != d.want {
			t.Errorf("with ttl-security %d, and %d of bfd, packets may have passed %d hops, want %d", d.of, d.own, got, d.want)
		}
	}
}

// TestNeighbor checks how a director answers for VIPs, and what it does where little is said.
func TestNeighbor(t *testing.T) {
	c, err := config.Load("testdata/full.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := model.Neighbor{
		Lease: model.Duration(3 * time.Second), Settle: model.Duration(500 * time.Millisecond), Refresh: model.Duration(30 * time.Second), Rate: 100,
		Interfaces: []model.NeighborInterface{{Name: "eth0"}, {Name: "bond0.100", Prefixes: []netip.Prefix{
			netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:1::/64"), netip.MustParsePrefix("198.51.100.7/32")}}},
	}
	if diff := cmp.Diff(want, c.Director.Neighbor, comparable); diff != "" {
		t.Errorf("neighbor (-want +got):\n%s", diff)
	}
	c, err = config.Parse("few.yaml", []byte("director:\n  interfaces: [eth0]\n  neighbor:\n    interfaces: [{name: eth0}]\nservices: []\n"))
	want = model.Neighbor{Lease: model.DefaultNeighborLease, Settle: model.DefaultNeighborSettle, Refresh: model.DefaultNeighborRefresh,
		Rate: model.DefaultNeighborRate, Interfaces: []model.NeighborInterface{{Name: "eth0"}}}
	if diff := cmp.Diff(want, c.Director.Neighbor, comparable); err != nil || diff != "" {
		t.Errorf("with defaults it is (-want +got), error %v:\n%s", err, diff)
	}
	if none, err := config.Load("testdata/minimal.good.yaml"); err != nil || !none.Director.Neighbor.IsZero() {
		t.Errorf("a file without neighbor has %+v (%v)", none.Director.Neighbor, err)
	}
}

func TestFormerNamesAreRead(t *testing.T) {
	text := func(retention, maxRetention string) []byte {
		return fmt.Appendf(nil, "director: {interfaces: [eth0]}\nservices:\n- name: web\n  vip: 203.0.113.10\n  protocol: tcp\n  port: 443\n  mode: ipip\n  backends: []\n  %s: 5m\n  %s: 12h\n", retention, maxRetention)
	}
	now, err := config.Parse("now.yaml", text("retention", "max-retention"))
	if err != nil || len(now.FormerKeys) > 0 {
		t.Fatalf("%v, with former names %v", err, now.FormerKeys)
	}
	before, err := config.Parse("before.yaml", text("drain", "max-drain"))
	if err != nil {
		t.Fatal(err)
	}
	want := []model.FormerKey{{Line: 9, Field: "services[0].drain", Now: "retention"}, {Line: 10, Field: "services[0].max-drain", Now: "max-retention"}}
	if diff := cmp.Diff(want, before.FormerKeys); diff != "" {
		t.Errorf("the former names (-want +got):\n%s", diff)
	}
	before.FormerKeys = nil
	if diff := cmp.Diff(now, before, comparable); diff != "" {
		t.Errorf("they mean something else (-now +before):\n%s", diff)
	}
}
