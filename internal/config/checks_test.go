package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
)

// Services have the checks that they name, with their own keys.
func TestNamedChecks(t *testing.T) {
	c, err := config.Load("testdata/checks.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	web, shop := c.Services[0].Health, c.Services[1].Health
	if web.Kind != model.CheckHTTP || web.Check != "" || web.Interval != model.Duration(2*time.Second) || web.StartDelay != model.Duration(10*time.Second) || web.Fall != model.DefaultHealthFall {
		t.Errorf("the service that names a check has %+v", web)
	}
	if shop.Kind != model.CheckHTTP || shop.Interval != model.Duration(10*time.Second) || shop.StartDelay != model.Duration(time.Minute) || shop.To != model.CheckAddress || shop.Port != 8081 || shop.Fall != 9 {
		t.Errorf("the service with keys of its own has %+v", shop)
	}
	good := []model.StatusRange{{First: 200, Last: 299}}
	want := []model.HealthRequest{
		{Method: "GET", Path: "/", Host: "www.example.org", Status: good, Digest: "md5:d41d8cd98f00b204e9800998ecf8427e"},
		{Method: "PATCH", Path: "/b", Host: "www.example.org", Status: []model.StatusRange{{First: 204, Last: 204}}, BodyRegexp: "^(a|b)$"},
		{Method: "GET", Path: "/c", Host: "c.example.org", Status: good, Digest: "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
	}
	for _, h := range []*model.HealthCheck{web, shop} {
		if diff := cmp.Diff(want, h.HTTP.All()); diff != "" || h.HTTP.Version != model.HTTP10 {
			t.Errorf("the requests are in HTTP %s (-want +got):\n%s", h.HTTP.Version, diff)
		}
	}
	var places []string
	for i := range c.Services[0].Backends {
		places = append(places, c.Services[0].ProbeAddress(&c.Services[0].Backends[i]).String())
	}
	if got := strings.Join(places, " "); got != "10.9.1.1:8080 10.0.1.2:81" {
		t.Errorf("probes go to %s", got)
	}
	for i := range c.Services[0].Backends {
		if c.Services[0].ChecksVIP(&c.Services[0].Backends[i]) {
			t.Errorf("probes of backend %d, which is checked elsewhere, go to the VIP", i)
		}
	}
}

// Sets have checks of their own, and nothing of the director's file.
func TestChecksOfSets(t *testing.T) {
	const service = "services: [{name: web, vip: 203.0.113.10, protocol: tcp, port: 80, mode: gue, backends: [], health: {check: web}}]\n"
	services, err := config.ParseSet("set", []byte("checks: [{name: web, kind: syn}]\n"+service))
	if err != nil || services[0].Health.Kind != model.CheckSYN {
		t.Errorf("a set with a check of its own: %+v, %v", services, err)
	}
	for _, text := range []string{service, `{"services":[{"name":"web","vip":"203.0.113.10","protocol":"tcp","port":"80","mode":"gue","health":{"check":"web"},"backends":[]}]}`} {
		_, err = config.ParseSet("set", []byte(text))
		const want = `services[0].health.check: there is no check "web": checks has none here, and those of a director's file are for the services of that file`
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of a set without it the error is %v, want %s", err, want)
		}
	}
}

// A check that nothing has is likely a mistake.
func TestUnusedChecksAreWarnedOf(t *testing.T) {
	text := "director: {interfaces: [eth0]}\nchecks:\n- {name: used, kind: tcp}\n- {name: unused, kind: tcp}\n" +
		"services: [{name: web, vip: 203.0.113.10, protocol: tcp, port: 80, mode: gue, backends: [{address: 10.0.1.1}], health: {check: used}}]\n"
	var warnings []string
	for _, e := range check(t, "weir.yaml", text, model.Roles{}).Errors {
		warnings = append(warnings, e.Error())
	}
	if want := []string{`weir.yaml:4: warning: checks[1]: no service has check "unused" (health: {check: unused})`}; !cmp.Equal(warnings, want) {
		t.Errorf("weir check says %q, want %q", warnings, want)
	}
}
