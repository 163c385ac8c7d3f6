package agent

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// TestSaysWhyIdle: a host whose backends need no agent is told so, and not that it has none.
func TestSaysWhyIdle(t *testing.T) {
	here := map[netip.Addr]bool{host4: true}
	service := func(mode model.Mode, at netip.Addr) model.Service {
		return model.Service{Name: "web", VIP: vip4, Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: mode,
			Backends: []model.Backend{{Name: "a", Address: at, Weight: 1}}}
	}
	for name, test := range map[string]struct {
		service model.Service
		want    string
	}{
		"backend of mode nat": {service(model.NAT, host4), `level=INFO msg="the backends of this host are all of mode nat, which needs no agent: there is nothing to unwrap" services=[web]`},
		"no backend":          {service(model.NAT, peer4), `level=WARN msg="no address of this host is a backend's: there is nothing to do"`},
		"backend of mode gue": {service(model.GUE, host4), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			a := &Agent{options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, config: model.Config{Services: []model.Service{test.service}}}
			p, err := newPlan(a.config, host{addresses: here, mtu: uplinkMTU})
			if err != nil {
				t.Fatal(err)
			}
			a.sayIdle(p, here)
			if got := strings.TrimSpace(log.String()); !strings.HasSuffix(got, test.want) || test.want == "" && got != "" {
				t.Errorf("the log says %q, want %q", got, test.want)
			}
		})
	}
}
