package translate_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
)

// slice returns a slice of endpoints, each written as NAME@NODE=ADDRESS, with a mark behind it: !
// is not ready, ~ terminates and still serves, x terminates and does not serve.
func slice(family discoveryv1.AddressType, port string, number int32, endpoints ...string) *discoveryv1.EndpointSlice {
	protocol := corev1.ProtocolTCP
	switch port {
	case "dns":
		protocol = corev1.ProtocolUDP
	case "s":
		protocol = corev1.ProtocolSCTP
	}
	s := &discoveryv1.EndpointSlice{AddressType: family, Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &number, Protocol: &protocol}}}
	for _, text := range endpoints {
		plain := strings.TrimRight(text, "!~x")
		pod, rest, _ := strings.Cut(plain, "@")
		node, address, _ := strings.Cut(rest, "=")
		e := discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node}
		if pod != "" {
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: pod}
		}
		switch strings.TrimPrefix(text, plain) {
		case "!":
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(false)}
		case "~":
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
		case "x":
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(true)}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func web(change ...func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports:      []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30080}}}}
	for _, f := range change {
		f(&s.Spec)
	}
	return s
}

func local(s *corev1.ServiceSpec) {
	s.ExternalTrafficPolicy, s.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 31000
}

var nodes = []translate.Node{
	{Name: "n1", V4: netip.MustParseAddr("10.0.0.1"), V6: netip.MustParseAddr("fd00::1"), Ready: true},
	{Name: "n2", V4: netip.MustParseAddr("10.0.0.2"), Ready: true},
	{Name: "n3", V4: netip.MustParseAddr("10.0.0.3"), V6: netip.MustParseAddr("fd00::3")},
	{Name: "n4", V4: netip.MustParseAddr("10.0.0.4"), Ready: true, Leaving: true},
	{Name: "n5", V4: netip.MustParseAddr("10.0.0.5"), Ready: true, Excluded: true},
}

// text writes services as lines: NAME MODE AFFINITY, then which clients they are for, and then each
// backend.
func text(services []model.Service) string {
	var lines []string
	for _, s := range services {
		lines = append(lines, fmt.Sprintf("%s %s:%s %s snat=%v %s", s.Name, s.VIP, s.Port, s.Mode, s.SNAT, s.Affinity))
		for _, p := range s.SourceRanges {
			lines = append(lines, "  for "+p.String())
		}
		for _, b := range s.Backends {
			lines = append(lines, fmt.Sprintf("  %s %s %d %s", b.Name, b.Endpoint(), b.Weight, b.State))
		}
	}
	return strings.Join(lines, "\n")
}

func TestServices(t *testing.T) {
	const v4, v6 = discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6
	toPods := translate.Options{Mode: model.NAT, SNAT: true, Backends: translate.Pods}
	toNodes := translate.Options{Mode: model.NAT, SNAT: true, Backends: translate.Nodes}
	direct := translate.Options{Mode: model.IPIP, SNAT: true, Backends: translate.Nodes}
	three := slice(v4, "http", 8080, "a@n1=10.1.0.1", "b@n1=10.1.0.2", "c@n2=10.1.0.3")
	for _, test := range []struct {
		name    string
		options translate.Options
		service *corev1.Service
		slices  []*discoveryv1.EndpointSlice
		vips    string
		want    string
		problem string
	}{
		{"pods, at the ports that they serve", toPods, web(), []*discoveryv1.EndpointSlice{three}, "203.0.113.1", `
shop/web/80-tcp 203.0.113.1:80 nat snat=true flow
  a 10.1.0.1:8080 100 active
  b 10.1.0.2:8080 100 active
  c 10.1.0.3:8080 100 active`, ""},
		{"those that terminate and serve get no new connections; those that are not ready are none", toPods, web(),
			[]*discoveryv1.EndpointSlice{slice(v4, "http", 8080, "a@n1=10.1.0.1", "b@n1=10.1.0.2~", "c@n2=10.1.0.3!", "d@n2=10.1.0.4x")}, "203.0.113.1", `
shop/web/80-tcp 203.0.113.1:80 nat snat=true flow
  a 10.1.0.1:8080 100 active
  b 10.1.0.2:8080 100 draining`, ""},
		{"where all terminate, those that serve are better than none", toPods, web(),
			[]*discoveryv1.EndpointSlice{slice(v4, "http", 8080, "a@n1=10.1.0.1~", "b@n1=10.1.0.2x")}, "203.0.113.1", `
shop/web/80-tcp 203.0.113.1:80 nat snat=true flow
  a 10.1.0.1:8080 100 active`, ""},
		{"named ports that pods serve at different numbers, a pod that is in two slices, and one without a name", toPods, web(),
			[]*discoveryv1.EndpointSlice{slice(v4, "http", 8080, "a@n1=10.1.0.1~"), slice(v4, "http", 8081, "b@n1=10.1.0.2"), slice(v4, "http", 8080, "a@n1=10.1.0.1"),
				slice(v4, "http", 8080, "@n1=10.1.0.9"), slice(v4, "other", 9, "z@n1=10.1.0.8")}, "203.0.113.1", `
shop/web/80-tcp 203.0.113.1:80 nat snat=true flow
  a 10.1.0.1:8080 100 active
  b 10.1.0.2:8081 100 active
  10.1.0.9:8080 10.1.0.9:8080 100 active`, ""},
		{"both families, each with its own pods' addresses", toPods, web(),
			[]*discoveryv1.EndpointSlice{slice(v4, "http", 8080, "a@n1=10.1.0.1"), slice(v6, "http", 8080, "a@n1=fd00:1::1")}, "203.0.113.1 2001:db8::1", `
shop/web/80-tcp 203.0.113.1:80 nat snat=true flow
  a 10.1.0.1:8080 100 active
shop/web/80-tcp-ipv6 2001:db8::1:80 nat snat=true flow
  a [fd00:1::1]:8080 100 active`, ""},
		{"protocols of all kinds, and a client that stays", toPods, web(func(s *corev1.ServiceSpec) {
			s.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Ports = append(s.Ports, corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, corev1.ServicePort{Name: "s", Port: 9, Protocol: corev1.ProtocolSCTP})
		}), []*discoveryv1.EndpointSlice{slice(v4, "http", 8080, "a@n1=10.1.0.1"), slice(v4, "dns", 5353, "a@n1=10.1.0.1"), slice(v4, "s", 9009, "a@n1=10.1.0.1")}, "203.0.113.1", `
shop/web/80-tcp 203.0.113.1:80 nat snat=true source-ip
  a 10.1.0.1:8080 100 active
shop/web/53-udp 203.0.113.1:53 nat snat=true source-ip
  a 10.1.0.1:5353 100 active
shop/web/9-sctp 203.0.113.1:9 nat snat=true source-ip
  a 10.1.0.1:9009 100 active`, ""},
		{"nodes: those that are not ready keep their slots, one that leaves drains, and one that is excluded is none", toNodes, web(), []*discoveryv1.EndpointSlice{three}, "203.0.113.1", `
shop/web/80-tcp 203.0.113.1:80 nat snat=true flow
  n1 10.0.0.1:30080 100 active
  n2 10.0.0.2:30080 100 active
  n3 10.0.0.3:30080 100 down
  n4 10.0.0.4:30080 100 draining`, ""},
		{"Local: nodes with pods, by how many", toNodes, web(local), []*discoveryv1.EndpointSlice{three}, "203.0.113.1", `
shop/web/80-tcp 203.0.113.1:80 nat snat=true flow
  n1 10.0.0.1:30080 200 active
  n2 10.0.0.2:30080 100 active`, "Unsupported: spec.externalTrafficPolicy Local: pods see a director's address"},
		{"Local: a node whose last pod terminates drains, and readiness of pods is believed", direct, web(local),
			[]*discoveryv1.EndpointSlice{slice(v4, "http", 8080, "a@n1=10.1.0.1~", "b@n2=10.1.0.2", "c@n3=10.1.0.3", "d@n9=10.1.0.9")}, "203.0.113.1", `
shop/web/80-tcp 203.0.113.1:80 ipip snat=false flow
  n1 10.0.0.1:0 100 draining
  n2 10.0.0.2:0 100 active
  n3 10.0.0.3:0 100 active`, ""},
		{"tunnels reach nodes by the family that they have", direct, web(), []*discoveryv1.EndpointSlice{slice(v6, "http", 8080, "a@n1=fd00:1::1")}, "2001:db8::1", `
shop/web/80-tcp-ipv6 2001:db8::1:80 ipip snat=false flow
  n1 [fd00::1]:0 100 active
  n2 10.0.0.2:0 100 active
  n3 [fd00::3]:0 100 down
  n4 10.0.0.4:0 100 draining`, ""},
		{"without pods nothing is forwarded, so that the VIP is withdrawn", toNodes, web(), nil, "203.0.113.1", `
shop/web/80-tcp 203.0.113.1:80 nat snat=true flow`, "NoBackends: nothing serves 203.0.113.1 port 80"},
		{"source ranges, as prefixes that directors take", toPods, web(func(s *corev1.ServiceSpec) {
			s.LoadBalancerSourceRanges = []string{" 192.0.2.7/24", "10.0.0.0/8", "192.0.2.0/24"}
		}), []*discoveryv1.EndpointSlice{slice(v4, "http", 8080, "a@n1=10.1.0.1")}, "203.0.113.1", `
shop/web/80-tcp 203.0.113.1:80 nat snat=true flow
  for 10.0.0.0/8
  for 192.0.2.0/24
  a 10.1.0.1:8080 100 active`, ""},
		{"source ranges of one family: nobody may reach the other", direct, web(func(s *corev1.ServiceSpec) { s.LoadBalancerSourceRanges = []string{"2001:db8:9::/48"} }),
			[]*discoveryv1.EndpointSlice{slice(v4, "http", 8080, "a@n1=10.1.0.1"), slice(v6, "http", 8080, "a@n1=fd00:1::1")}, "203.0.113.1 2001:db8::1", `
shop/web/80-tcp-ipv6 2001:db8::1:80 ipip snat=false flow
  for 2001:db8:9::/48
  n1 [fd00::1]:0 100 active
  n2 10.0.0.2:0 100 active
  n3 [fd00::3]:0 100 down
  n4 10.0.0.4:0 100 draining`, "Unsupported: spec.loadBalancerSourceRanges has no IPv4 prefix, so nobody may reach 203.0.113.1"},
		{"source ranges that cannot be read", toPods, web(func(s *corev1.ServiceSpec) { s.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "010.1.0.0/16"} }),
			[]*discoveryv1.EndpointSlice{three}, "203.0.113.1", "\n", `Unsupported: spec.loadBalancerSourceRanges[1]: "010.1.0.0/16" is not a prefix`},
		{"no node ports", toNodes, web(func(s *corev1.ServiceSpec) { s.Ports[0].NodePort = 0 }), []*discoveryv1.EndpointSlice{three}, "203.0.113.1", "\n",
			"Unsupported: port 80 has no node port"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var vips []netip.Addr
			for _, vip := range strings.Fields(test.vips) {
				vips = append(vips, netip.MustParseAddr(vip))
			}
			services, problems := translate.Services(test.options, test.service, test.slices, vips, translate.NewCluster(nodes))
			if d := cmp.Diff(strings.TrimPrefix(test.want, "\n"), text(services)); d != "" {
				t.Error("services (-want +got):", d)
			}
			var told []string
			for _, p := range problems {
				told = append(told, fmt.Sprintf("%s: %s", p.Reason, p.Message))
			}
			if all := strings.Join(told, "\n"); !strings.Contains(all, test.problem) || (test.problem == "") != (all == "") {
				t.Errorf("problems %q, want %q", all, test.problem)
			}
			for i := range services { // as a director will
				c := model.Config{Services: services[i : i+1], Director: model.Director{Limits: model.Limits{Services: 9, Backends: 99, RingMemory: 1 << 30, Fragments: 9}}}
				c.SetDefaults()
				if err := c.Validate(); err != nil {
					t.Error("a director refuses it:", err)
				}
			}
		})
	}
}

// If no node is ready, the controller is the one that is cut off: all nodes are used.
func TestNoNodeIsReady(t *testing.T) {
	dark := slices.Clone(nodes[:2])
	dark[0].Ready, dark[1].Ready = false, false
	services, _ := translate.Services(translate.Options{Mode: model.IPIP, Backends: translate.Nodes}, web(),
		[]*discoveryv1.EndpointSlice{slice(discoveryv1.AddressTypeIPv4, "http", 80, "a@n1=10.1.0.1")}, []netip.Addr{netip.MustParseAddr("203.0.113.1")}, translate.NewCluster(dark))
	for _, b := range services[0].Backends {
		if b.State != model.Active {
			t.Errorf("%s is %s where no node is ready", b.Name, b.State)
		}
	}
}

func TestModeOfOneService(t *testing.T) {
	options := translate.Options{Mode: model.NAT, SNAT: true, Backends: translate.Nodes, NodeHealth: true}
	slices := []*discoveryv1.EndpointSlice{slice(discoveryv1.AddressTypeIPv4, "http", 80, "a@n1=10.1.0.1")}
	for annotation, want := range map[string]struct {
		mode    model.Mode
		problem string
	}{
		"l2dsr": {model.L2DSR, ""}, "ipip": {model.IPIP, ""}, "nat": {model.NAT, "Local: pods see a director's address"}, "": {model.NAT, "it is forwarded in mode nat"},
		"dsr": {model.NAT, "it is forwarded in mode nat"}, "redirect": {model.NAT, "it is forwarded in mode nat"}, "gue": {model.GUE, "NoAgent"},
	} {
		s := web(local)
		s.Annotations = map[string]string{translate.AnnotationMode: annotation}
		services, problems := translate.Services(options, s, slices, []netip.Addr{netip.MustParseAddr("203.0.113.1")}, translate.NewCluster(nodes))
		if services[0].Mode != want.mode || !strings.Contains(fmt.Sprint(problems), want.problem) || (want.problem == "") != (len(problems) == 0) {
			t.Errorf("annotated with mode %q it is forwarded in %s, problems %v", annotation, services[0].Mode, problems)
		}
		if h := services[0].Health; services[0].Mode != model.GUE && (h == nil || h.Port != 31000) {
			t.Errorf("nodes are checked by %+v, want healthCheckNodePort", h)
		}
	}
}

func TestWants(t *testing.T) {
	s := web(func(s *corev1.ServiceSpec) {
		s.IPFamilies, s.LoadBalancerIP = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}, "203.0.113.7"
	})
	s.Annotations = map[string]string{translate.AnnotationPool: "public"}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.5"}, {Hostname: "example.org"}}
	r, problems := translate.Wants(s)
	if got := fmt.Sprintln(r.Service, r.Families, r.Pool, r.Wanted, r.Had, problems); got != "shop/web [IPv6 IPv4] public [203.0.113.7] [203.0.113.5] []\n" {
		t.Error("it wants", got)
	}
	s.Spec.IPFamilies = s.Spec.IPFamilies[1:]
	s.Annotations[translate.AnnotationAddresses] = "203.0.113.9, 2001:db8::1,x"
	r, problems = translate.Wants(s)
	if got := fmt.Sprint(r.Wanted); got != "[203.0.113.9]" {
		t.Error("the annotation is before spec.loadBalancerIP: it wants", got)
	}
	if text := fmt.Sprint(problems); !strings.Contains(text, "2001:db8::1 is IPv6, which is not in spec.ipFamilies") || !strings.Contains(text, `"x" is not an IP address`) {
		t.Error("problems:", text)
	}
}

func TestNodeOf(t *testing.T) {
	var n corev1.Node
	text := `{"metadata": {"name": "n1", "labels": {"node.kubernetes.io/exclude-from-external-load-balancers": "", "topology.kubernetes.io/zone": "east", "weir.io/weight": "50"}},
		"spec": {"podCIDRs": ["10.244.7.1/24", "fd00:244::/64", "0.0.0.0/0", "x"], "unschedulable": true, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
		"status": {"conditions": [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": "Unknown"}],
			"addresses": [{"type": "Hostname", "address": "10.9.9.9"}, {"type": "ExternalIP", "address": "198.51.100.1"}, {"type": "ExternalIP", "address": "2001:db8::1"},
				{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "10.0.0.2"}]}}`
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	want := translate.Node{Name: "n1", V4: netip.MustParseAddr("10.0.0.1"), V6: netip.MustParseAddr("2001:db8::1"), Excluded: true, Zone: "east", Weight: "50",
		Sources: "198.51.100.1/32 2001:db8::1/128 10.0.0.1/32 10.0.0.2/32 10.244.7.0/24 fd00:244::/64"}
	if got := translate.NodeOf(&n); got != want {
		t.Errorf("a cordoned node is %+v, want %+v", got, want)
	}
	n.Spec.Taints[0].Key = "ToBeDeletedByClusterAutoscaler"
	n.Status.Conditions[1].Status = corev1.ConditionTrue
	if got := translate.NodeOf(&n); !got.Leaving || !got.Ready {
		t.Errorf("a node that the autoscaler drains is %+v", got)
	}
	n.Spec.Taints, n.DeletionTimestamp = nil, &metav1.Time{Time: time.Unix(1, 0)}
	if got := translate.NodeOf(&n); !got.Leaving {
		t.Errorf("a node that is deleted is %+v", got)
	}
}

// A user who asks for a time for which clients are to stay is told that no time is counted.
func TestAffinityTimeout(t *testing.T) {
	for name, test := range map[string]struct {
		affinity corev1.ServiceAffinity
		seconds  int32
		told     bool
	}{"the default": {corev1.ServiceAffinityClientIP, 10800, false}, "less": {corev1.ServiceAffinityClientIP, 600, true}, "none": {corev1.ServiceAffinityNone, 600, false}} {
		s := web(func(s *corev1.ServiceSpec) {
			s.SessionAffinity = test.affinity
			s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &test.seconds}}
		})
		services, problems := translate.Services(translate.Options{Mode: model.NAT, Backends: translate.Nodes}, s, nil, []netip.Addr{netip.MustParseAddr("203.0.113.1")}, translate.NewCluster(nodes))
		told := false
		for _, p := range problems {
			told = told || p.Reason == translate.Unsupported && strings.Contains(p.Message, "timeoutSeconds: 600 s are not counted")
		}
		if told != test.told || len(services) != 1 || (services[0].Affinity == model.AffinitySourceIP) != (test.affinity == corev1.ServiceAffinityClientIP) {
			t.Errorf("%s: the user is told: %v, %v; %+v", name, told, problems, services)
		}
	}
}
