package agent

import (
	"bytes"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// TestSaysWhyIdle: a host whose backends need no agent is told so, one that has none, and one to
// which no director may send.
func TestSaysWhyIdle(t *testing.T) {
	here := map[netip.Addr]int{host4: loopbackIndex}
	director4, director6 := netip.MustParsePrefix("10.9.9.9/32"), netip.MustParsePrefix("fd00::9/128")
	service := func(mode model.Mode, at, host netip.Addr) model.Service {
		return model.Service{Name: "web", VIP: vip4, Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: mode,
			Backends: []model.Backend{{Name: "a", Address: at, Host: host, Weight: 1}}}
	}
	for name, test := range map[string]struct {
		service   model.Service
		directors []netip.Prefix
		want      Idle
		log       string
	}{
		"backend of mode nat": {service(model.NAT, host4, netip.Addr{}), nil, Idle{},
			`level=INFO msg="the backends of this host are all of mode nat, which needs no agent: there is nothing to unwrap" services=[web]`},
		"no backend":                {service(model.NAT, peer4, netip.Addr{}), nil, Idle{NoBackend: true}, ""},
		"pods elsewhere":            {service(model.GUE, netip.MustParseAddr("10.244.0.9"), peer4), nil, Idle{}, ""},
		"backend of mode gue":       {service(model.GUE, host4, netip.Addr{}), []netip.Prefix{director4}, Idle{}, ""},
		"no directors":              {service(model.GUE, host4, netip.Addr{}), nil, Idle{NoDirector: []netip.Addr{host4}}, ""},
		"directors of other family": {service(model.GUE, host4, netip.Addr{}), []netip.Prefix{director6}, Idle{NoDirector: []netip.Addr{host4}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			a := &Agent{deps: Deps{Log: slog.New(slog.NewTextHandler(&log, nil))},
				config: model.Config{Services: []model.Service{test.service}, Directors: test.directors}}
			p, err := newPlan(a.config, host{addresses: here})
			if err != nil {
				t.Fatal(err)
			}
			a.noteIdle(p, host{addresses: here})
			if got := a.Idle(); !reflect.DeepEqual(got, test.want) {
				t.Errorf("it is idle by %+v, want %+v", got, test.want)
			}
			if got := strings.TrimSpace(log.String()); !strings.HasSuffix(got, test.log) || test.log == "" && got != "" {
				t.Errorf("the log says %q, want %q", got, test.log)
			}
		})
	}
}
