package translate_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

func fromJSON[T any](t *testing.T, text string) *T {
	t.Helper()
	v := new(T)
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func TestReadAddressPool(t *testing.T) {
	for spec, want := range map[string]string{
		`{"addresses": ["203.0.113.0/31", "2001:db8::1"], "onRequest": true, "avoidBuggyIPs": true, "namespaces": ["a"]}`: "203.0.113.0-203.0.113.1 2001:db8::1 true true [a]",
		`{"addresses": ["203.0.113.1"]}`:                "203.0.113.1 false false []",
		`{"addresses": ["203.0.113.9-203.0.113.1"]}`:    `spec.addresses[0]: "203.0.113.9-203.0.113.1" ends before it begins`,
		`{"addresses": ["203.0.113.1", "203.0.113.x"]}`: `spec.addresses[1]: "203.0.113.x" is not an address`,
		`{"addresses": ["203.0.113.1"], "serviceSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}`: `spec.serviceSelector: "Is" is not a valid`,
		`{"addresses": ["203.0.113.1"], "namespaceSelector": {"matchLabels": {"a b": "c"}}}`:                        `spec.namespaceSelector: `,
	} {
		p, err := translate.ReadAddressPool(&v1alpha1.AddressPool{Spec: *fromJSON[v1alpha1.AddressPoolSpec](t, spec)})
		got := fmt.Sprint(err)
		if err == nil {
			var ranges []string
			for _, r := range p.Addresses {
				ranges = append(ranges, r.String())
			}
			got = fmt.Sprintf("%s %v %v %v", strings.Join(ranges, " "), p.OnRequest, p.AvoidBuggy, p.Namespaces)
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s is read as %s, want %s", spec, got, want)
		}
	}
}

func TestAddressPoolExcludes(t *testing.T) {
	s := web()
	s.Labels = map[string]string{"app": "web"}
	for spec, want := range map[string]string{
		`{}`: "",
		`{"serviceSelector": {}, "namespaceSelector": {}}`:                                     "",
		`{"serviceSelector": {"matchLabels": {"app": "web"}}}`:                                 "",
		`{"serviceSelector": {"matchLabels": {"app": "db"}}}`:                                  "Services with its labels",
		`{"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}}`: "",
		`{"namespaceSelector": {"matchLabels": {"team": "b"}}}`:                                "namespaces with the labels of shop",
	} {
		p, err := translate.ReadAddressPool(&v1alpha1.AddressPool{Spec: *fromJSON[v1alpha1.AddressPoolSpec](t, spec)})
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Excludes(s, map[string]string{"team": "a"}); got != want {
			t.Errorf("%s excludes %q, want %q", spec, got, want)
		}
	}
}

func policy(t *testing.T, name string, age time.Duration, spec string) *v1alpha1.ServicePolicy {
	t.Helper()
	return &v1alpha1.ServicePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))},
		Spec: *fromJSON[v1alpha1.ServicePolicySpec](t, spec)}
}

// What a ServicePolicy says ends in what directors are told, and what it leaves out is as if there
// were none.
func TestServicePolicy(t *testing.T) {
	three := slice(discoveryv1.AddressTypeIPv4, "http", 8080, "a@n1=10.1.0.1")
	dns := slice(discoveryv1.AddressTypeIPv4, "dns", 5353, "a@n1=10.1.0.1")
	base := translate.Options{Mode: model.NAT, SNAT: true, Backends: translate.Nodes, NodeHealth: true}
	both := func(s *corev1.ServiceSpec) {
		s.Ports = append(s.Ports, corev1.ServicePort{Name: "dns", Port: 53, NodePort: 30053, Protocol: corev1.ProtocolUDP})
	}
	for _, test := range []struct {
		spec    string
		service *corev1.Service
		want    string // of each port
		problem string
	}{
		{`{"selector": {}}`, web(), "nat maglev flow 0s 0s http:10256/healthz", ""},
		{`{"selector": {}, "mode": "ipip", "policy": "least-conn", "drain": "90s", "maxDrain": "2h", "health": {"kind": "http", "port": 81, "interval": "1s", "timeout": "200ms", "rise": 4, "fall": 5, "http": {"path": "/up", "host": "x", "status": ["204"]}}}`,
			web(both), "ipip least-conn flow 1m30s 2h0m0s http:81/up, ipip maglev flow 1m30s 2h0m0s http:81/up", ""},
		{`{"selector": {}, "affinity": "source-ip", "health": {"kind": "none"}}`, web(), "nat maglev source-ip 0s 0s none:0", ""},
		{`{"selector": {}, "policy": "random"}`, web(func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP }),
			"nat maglev source-ip 0s 0s http:10256/healthz", "policy random of its ServicePolicy does not"},
	} {
		p, err := translate.ReadServicePolicy(policy(t, "p", 0, test.spec), base)
		if err != nil {
			t.Errorf("%s: %v", test.spec, err)
			continue
		}
		services, problems := translate.Services(p.Options, test.service, []*discoveryv1.EndpointSlice{three, dns}, []netip.Addr{netip.MustParseAddr("203.0.113.1")}, translate.NewCluster(nodes))
		var got []string
		for _, s := range services {
			health := fmt.Sprintf("%s:%d", s.Health.Kind, s.Health.Port)
			if s.Health.HTTP != nil {
				health += s.Health.HTTP.Path
			}
			got = append(got, fmt.Sprintf("%s %s %s %s %s %s", s.Mode, s.Policy, s.Affinity, s.Retention, s.MaxRetention, health))
		}
		if all := strings.Join(got, ", "); all != test.want {
			t.Errorf("%s makes %s, want %s", test.spec, all, test.want)
		}
		if all := fmt.Sprint(problems); (test.problem == "") != (len(problems) == 0) || !strings.Contains(all, test.problem) {
			t.Errorf("%s has the problems %s, want %q", test.spec, all, test.problem)
		}
		c := model.Config{Services: services, Director: model.Director{Limits: model.Limits{Services: 9, Backends: 99, RingMemory: 1 << 30, Fragments: 9}}}
		c.SetDefaults()
		if err := c.Validate(); err != nil {
			t.Errorf("%s: a director refuses it: %v", test.spec, err)
		}
	}
	for spec, want := range map[string]string{
		`{"selector": {}, "health": {"kind": "tls", "tls": {"name": "x", "ca": "none"}}}`:               "spec.health.tls.ca: ",
		`{"selector": {}, "health": {"kind": "udp", "udp": {"send": "hex:0"}}}`:                         "spec.health.udp.send: ",
		`{"selector": {}, "health": {"kind": "dns", "dns": {"name": "x", "type": "ANY"}}}`:              "spec.health.dns.type: ",
		`{"selector": {}, "health": {"kind": "tcp", "grpc": {}}}`:                                       "spec.health.grpc: ",
		`{"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}`:                          "spec.selector: ",
		`{"selector": {}, "mode": "redirect"}`:                                                          "spec.mode: redirect is not available here yet",
		`{"selector": {}, "policy": "best"}`:                                                            "spec.policy: ",
		`{"selector": {}, "drain": "0s"}`:                                                               "spec.drain: ",
		`{"selector": {}, "health": {"kind": "ping"}}`:                                                  "spec.health.kind: ",
		`{"selector": {}, "health": {"kind": "exec"}}`:                                                  "spec.health.exec: ",
		`{"selector": {}, "health": {"kind": "http", "http": {"bodyRegexp": "("}}}`:                     "spec.health.http.bodyRegexp: ",
		`{"selector": {}, "health": {"kind": "http", "http": {"requests": [{}, {"digest": "md5:0"}]}}}`: "spec.health.http.requests[1].digest: ",
		`{"selector": {}, "health": {"kind": "smtp", "smtp": {"startTLS": true}}}`:                      "spec.health.tls: ",
		`{"selector": {}, "health": {"kind": "tcp", "interval": "x"}}`:                                  "spec.health.interval: ",
		`{"selector": {}, "health": {"kind": "http", "http": {"status": ["200", "300-200"]}}}`:          "spec.health.http.status[1]: ",
	} {
		if _, err := translate.ReadServicePolicy(policy(t, "p", 0, spec), base); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s is read with error %v, want %s", spec, err, want)
		}
	}
	base.Backends = translate.Pods
	if _, err := translate.ReadServicePolicy(policy(t, "p", 0, `{"selector": {}, "mode": "l2dsr"}`), base); err == nil || !strings.Contains(err.Error(), "spec.mode: mode l2dsr reaches nodes only") {
		t.Error("another link's pods are read with error", err)
	}
}

// If there are several policies, the one with the highest priority counts, then the oldest, then
// the first by name.
func TestServicePolicyFor(t *testing.T) {
	read := func(p *v1alpha1.ServicePolicy) *translate.ServicePolicy {
		one, err := translate.ReadServicePolicy(p, translate.Options{Mode: model.NAT, Backends: translate.Nodes})
		if err != nil {
			t.Fatal(err)
		}
		return one
	}
	policies := translate.NewServicePolicies([]*translate.ServicePolicy{
		read(policy(t, "young", time.Hour, `{"selector": {}}`)),
		read(policy(t, "old-b", 2*time.Hour, `{"selector": {}}`)),
		read(policy(t, "old-a", 2*time.Hour, `{"selector": {}}`)),
		read(policy(t, "first", 0, `{"selector": {"matchLabels": {"app": "db"}}, "priority": 5}`)),
		read(policy(t, "last", 9*time.Hour, `{"selector": {}, "priority": -1}`)),
	})
	for labels, want := range map[string]string{"web": "old-a", "db": "first"} {
		s := web()
		s.Labels = map[string]string{"app": labels}
		if got := policies.For(s); got == nil || got.Of.Name != want {
			t.Errorf("for %s counts %v, want %s", labels, got, want)
		}
	}
	elsewhere := web()
	elsewhere.Namespace = "other"
	if got := policies.For(elsewhere); got != nil {
		t.Errorf("a policy of another namespace counts: %s", got.Of.Name)
	}
	if got := translate.ServicePolicies(nil).For(web()); got != nil {
		t.Error("without policies one counts:", got.Of.Name)
	}
}

// All keys of checks, and all others that directors know about services, reach directors unchanged.
func TestServicePolicyInFull(t *testing.T) {
	base := translate.Options{Mode: model.NAT, SNAT: true, Backends: translate.Nodes, NodeHealth: true}
	for spec, want := range map[string]string{
		`{"selector": {}, "policy": "p2c", "minHealthy": 2, "health": {"kind": "tcp", "to": "address", "panic": 0}}`:                                                                                                                                                          `{"policy":"p2c","min-healthy":2,"health":{"kind":"tcp","panic":0,"to":"address"}}`,
		`{"selector": {}, "minHealthy": 0, "health": {"kind": "http", "http": {"method": "OPTIONS", "body": "ok", "status": ["200-299", "401"]}}}`:                                                                                                                            `{"policy":"maglev","min-healthy":0,"health":{"kind":"http","http":{"method":"OPTIONS","status":["200-299","401"],"body":"ok"}}}`,
		`{"selector": {}, "health": {"kind": "http", "startDelay": "5s", "http": {"version": "2", "host": "x.org", "requests": [{"path": "/a", "bodyRegexp": "^a"}, {"method": "PUT", "path": "/b", "status": ["201"], "digest": "md5:d41d8cd98f00b204e9800998ecf8427e"}]}}}`: `{"policy":"maglev","health":{"kind":"http","start-delay":"5s","http":{"host":"x.org","version":"2","requests":[{"path":"/a","body-regexp":"^a"},{"method":"PUT","path":"/b","status":["201"],"digest":"md5:d41d8cd98f00b204e9800998ecf8427e"}]}}}`,
		`{"selector": {}, "health": {"kind": "smtp", "smtp": {"helo": "lb.example.org", "startTLS": true}, "tls": {"name": "mail.example.org"}}}`:                                                                                                                             `{"policy":"maglev","health":{"kind":"smtp","tls":{"name":"mail.example.org"},"smtp":{"helo":"lb.example.org","starttls":true}}}`,
		`{"selector": {}, "health": {"kind": "tls", "tls": {"name": "web.example.org"}}}`:                                                                                                                                                                                     `{"policy":"maglev","health":{"kind":"tls","tls":{"name":"web.example.org"}}}`,
		`{"selector": {}, "health": {"kind": "grpc", "grpc": {"service": "shop"}, "tls": {"skipVerify": true}}}`:                                                                                                                                                              `{"policy":"maglev","health":{"kind":"grpc","tls":{"skip-verify":true},"grpc":{"service":"shop"}}}`,
		`{"selector": {}, "health": {"kind": "udp", "udp": {"send": "hex:00ff", "expect": "pong"}}}`:                                                                                                                                                                          `{"policy":"maglev","health":{"kind":"udp","udp":{"send":"hex:00ff","expect":"pong"}}}`,
		`{"selector": {}, "health": {"kind": "dns", "interval": "500ms", "timeout": "1s", "rise": 1, "fall": 2, "dns": {"name": "x.org", "type": "AAAA", "rcodes": ["nxdomain"]}}}`:                                                                                           `{"policy":"maglev","health":{"kind":"dns","interval":"500ms","timeout":"1s","rise":1,"fall":2,"dns":{"name":"x.org","type":"AAAA","rcodes":["nxdomain"]}}}`,
	} {
		p, err := translate.ReadServicePolicy(policy(t, "p", 0, spec), base)
		if err != nil {
			t.Errorf("%s: %v", spec, err)
			continue
		}
		services, _ := translate.Services(p.Options, web(), nil, []netip.Addr{netip.MustParseAddr("203.0.113.1")}, translate.NewCluster(nodes))
		got, err := json.Marshal(struct {
			Policy     model.Policy       `json:"policy"`
			MinHealthy *uint32            `json:"min-healthy,omitempty"`
			Health     *model.HealthCheck `json:"health"`
		}{services[0].Policy, services[0].MinHealthy, services[0].Health})
		if err != nil || string(got) != want {
			t.Errorf("%s makes %s, error %v; want %s", spec, got, err, want)
		}
	}
}
