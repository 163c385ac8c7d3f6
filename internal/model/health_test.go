package model_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/model"
)

func TestPayload(t *testing.T) {
	for payload, want := range map[model.Payload]string{
		"ping":       "ping",
		"größe 1":    "größe 1",
		"\x00\xff":   "hex:00ff",
		"a\nb":       "hex:610a62",
		"hex:00":     "hex:6865783a3030", // as text, not as a byte
		"ends in \t": "hex:656e647320696e2009",
	} {
		text, err := payload.MarshalText()
		if err != nil || string(text) != want {
			t.Errorf("%q is written as %s (%v), want %s", string(payload), text, err, want)
		}
		var again model.Payload
		if err := again.UnmarshalText(text); err != nil || again != payload {
			t.Errorf("%s is read as %q (%v), want %q", text, string(again), err, string(payload))
		}
	}
}

func TestServerName(t *testing.T) {
	for _, test := range []struct {
		how  model.HealthCheck
		want string
	}{
		{model.HealthCheck{}, ""},
		{model.HealthCheck{TLS: &model.HealthTLS{Name: "a.example"}, HTTP: &model.HealthHTTP{HealthRequest: model.HealthRequest{Host: "b.example"}}}, "a.example"},
		{model.HealthCheck{TLS: &model.HealthTLS{}, HTTP: &model.HealthHTTP{HealthRequest: model.HealthRequest{Host: "b.example"}}}, "b.example"},
		{model.HealthCheck{HTTP: &model.HealthHTTP{HealthRequest: model.HealthRequest{Host: "b.example:8443"}}}, "b.example"},
		{model.HealthCheck{HTTP: &model.HealthHTTP{HealthRequest: model.HealthRequest{Host: "[2001:db8::1]:8443"}}}, ""},
	} {
		if got := test.how.ServerName(); got != test.want {
			t.Errorf("%+v asks for %q, want %q", test.how, got, test.want)
		}
	}
}

// Two services may have one check, as an anchor in a file: defaults that are set in one
// must not be seen in a configuration that somebody reads.
func TestDefaultsOfChecksAreNotShared(t *testing.T) {
	shared := &model.HealthCheck{Kind: model.CheckHTTP, HTTP: &model.HealthHTTP{HealthRequest: model.HealthRequest{Path: "/x"}}}
	c := config()
	c.Services[0].Health, c.Services[1].Health = shared, shared
	c.SetDefaults()
	if diff := cmp.Diff(&model.HealthCheck{Kind: model.CheckHTTP, HTTP: &model.HealthHTTP{HealthRequest: model.HealthRequest{Path: "/x"}}}, shared); diff != "" {
		t.Errorf("setting defaults has changed what was given (-given +now):\n%s", diff)
	}
	percent := uint8(model.DefaultHealthPanic)
	want := &model.HealthCheck{
		Kind: model.CheckHTTP, Interval: model.Duration(time.Second), Jitter: model.Duration(100 * time.Millisecond),
		Timeout: model.Duration(time.Second), Rise: 2, Fall: 3, Panic: &percent,
		HTTP: &model.HealthHTTP{HealthRequest: model.HealthRequest{Method: "GET", Path: "/x", Status: []model.StatusRange{{First: 200, Last: 299}}}},
	}
	if diff := cmp.Diff(want, c.Services[1].Health); diff != "" {
		t.Errorf("the defaults are not as wanted (-want +got):\n%s", diff)
	}
}

// A configuration that did not come from a file may lack the defaults that a file gets.
func TestChecksWithoutDefaults(t *testing.T) {
	c := config()
	c.Services[0].Health = &model.HealthCheck{Kind: model.CheckTCP}
	err := c.Validate()
	for _, key := range []string{"interval", "timeout", "rise", "fall"} {
		if err == nil || !strings.Contains(err.Error(), "services[0].health."+key) {
			t.Errorf("a check without %s is valid: %v", key, err)
		}
	}
}

// In a group, all directors have to agree which backends start slowly.
func TestSlowStartInAGroup(t *testing.T) {
	for _, test := range []struct {
		name  string
		own   int
		alter func(*model.Director)
		want  string
	}{
		{"alone", 1, func(*model.Director) {}, ""},
		{"a set of a director that is alone", 0, func(*model.Director) {}, ""},
		{"a set of the group", 0, func(d *model.Director) { d.Store.Etcd.Endpoints = []string{"http://10.0.0.1:2379"} }, ""},
		{"its own beside a group's", 1, func(d *model.Director) { d.Store.Etcd.Endpoints = []string{"http://10.0.0.1:2379"} }, "needs a service that the group shares"},
		{"a group without a store", 1, func(d *model.Director) { d.Group = addresses("10.0.0.1") }, "needs director.store.etcd"},
		{"a set of a group without a store", 0, func(d *model.Director) { d.Group = addresses("10.0.0.1") }, "needs director.store.etcd"},
	} {
		c := config()
		c.Services = c.Services[:1]
		c.Services[0].Health = &model.HealthCheck{Kind: model.CheckTCP, SlowStart: model.Duration(time.Minute)}
		test.alter(&c.Director)
		c.SetDefaults()
		switch err := c.ValidateShared(test.own); {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: the error is %v, want one with %q", test.name, err, test.want)
		}
	}
}

func addresses(list ...string) (all []netip.Addr) {
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func TestWhatIsProbed(t *testing.T) {
	nat := model.NAT
	for _, row := range []struct {
		name    string
		service model.Service
		backend model.Backend
		vip     bool
	}{
		{"l2dsr", model.Service{Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.L2DSR, Health: &model.HealthCheck{Kind: model.CheckHTTP}}, model.Backend{}, true},
		{"ipip", model.Service{Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.IPIP, Health: &model.HealthCheck{Kind: model.CheckTCP, To: model.CheckVIP}}, model.Backend{}, true},
		{"gue, one port of many", model.Service{Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 90}, Mode: model.GUE, Health: &model.HealthCheck{Kind: model.CheckSYN, Port: 85}}, model.Backend{}, true},
		{"gue, all ports", model.Service{Protocol: model.TCP, Mode: model.GUE, Health: &model.HealthCheck{Kind: model.CheckSYN, Port: 85}}, model.Backend{}, true},
		{"DNS over TCP", model.Service{Protocol: model.TCP, Port: model.PortRange{First: 53, Last: 53}, Mode: model.GUE, Health: &model.HealthCheck{Kind: model.CheckDNS}}, model.Backend{}, true},
		{"DNS over UDP", model.Service{Protocol: model.UDP, Port: model.PortRange{First: 53, Last: 53}, Mode: model.GUE, Health: &model.HealthCheck{Kind: model.CheckDNS}}, model.Backend{}, true},
		{"UDP", model.Service{Protocol: model.UDP, Port: model.PortRange{First: 53, Last: 53}, Mode: model.GUE, Health: &model.HealthCheck{Kind: model.CheckUDP}}, model.Backend{}, true},
		{"it is wanted otherwise", model.Service{Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.GUE, Health: &model.HealthCheck{Kind: model.CheckHTTP, To: model.CheckAddress}}, model.Backend{}, false},
		{"nat", model.Service{Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.NAT, Health: &model.HealthCheck{Kind: model.CheckHTTP}}, model.Backend{}, false},
		{"nat of one backend", model.Service{Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.GUE, Health: &model.HealthCheck{Kind: model.CheckHTTP}}, model.Backend{Mode: &nat}, false},
		{"another port", model.Service{Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.GUE, Health: &model.HealthCheck{Kind: model.CheckHTTP, Port: 81}}, model.Backend{}, false},
		{"another protocol", model.Service{Protocol: model.UDP, Port: model.PortRange{First: 443, Last: 443}, Mode: model.GUE, Health: &model.HealthCheck{Kind: model.CheckHTTPS}}, model.Backend{}, false},
		{"ICMP", model.Service{Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.GUE, Health: &model.HealthCheck{Kind: model.CheckICMP}}, model.Backend{}, false},
	} {
		if got := row.service.ChecksVIP(&row.backend); got != row.vip {
			t.Errorf("%s: the VIP is probed: %v, want %v", row.name, got, row.vip)
		}
	}
}
