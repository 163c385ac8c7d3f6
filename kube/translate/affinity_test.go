package translate_test

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
)

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
