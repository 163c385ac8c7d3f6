package translate_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"weir.io/weir/kube/translate"
)

// The status of ports says which are not forwarded at an address, and nothing where all are; the
// condition says it in words, with what to do.
func TestPortStatuses(t *testing.T) {
	v4, v6 := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")
	mixed := func(s *corev1.ServiceSpec) {
		s.Ports = append(s.Ports, corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP})
	}
	sctp := func(s *corev1.ServiceSpec) {
		s.Ports = append(s.Ports, corev1.ServicePort{Name: "s", Port: 10, Protocol: corev1.ProtocolSCTP})
	}
	dccp := func(s *corev1.ServiceSpec) {
		s.Ports = append(s.Ports, corev1.ServicePort{Name: "s", Port: 9, Protocol: "DCCP"})
	}
	only4 := func(s *corev1.ServiceSpec) { s.LoadBalancerSourceRanges = []string{"10.0.0.0/8"} }
	for _, test := range []struct {
		what    string
		changes []func(*corev1.ServiceSpec)
		v4, v6  string
		words   []string
	}{
		{"TCP, UDP and SCTP", []func(*corev1.ServiceSpec){mixed, sctp}, "", "", nil},
		{"DCCP, too", []func(*corev1.ServiceSpec){mixed, dccp}, "80/TCP, 53/UDP, 9/DCCP weir.io/UnsupportedProtocol", "80/TCP, 53/UDP, 9/DCCP weir.io/UnsupportedProtocol",
			[]string{"port 9: DCCP is not forwarded", "give it to a Service of its own"}},
		{"no client in one family", []func(*corev1.ServiceSpec){only4}, "", "80/TCP weir.io/NoSourceRange", []string{"no IPv6 prefix, so nobody may reach 2001:db8::1"}},
		{"both", []func(*corev1.ServiceSpec){only4, dccp}, "80/TCP, 9/DCCP weir.io/UnsupportedProtocol", "80/TCP weir.io/NoSourceRange, 9/DCCP weir.io/UnsupportedProtocol",
			[]string{"port 9", "2001:db8::1"}},
	} {
		s := web(test.changes...)
		for address, want := range map[netip.Addr]string{v4: test.v4, v6: test.v6} {
			var got []string
			for _, p := range translate.PortStatuses(s, address) {
				text := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
				if p.Error != nil {
					text += " " + *p.Error
				}
				got = append(got, text)
			}
			if all := strings.Join(got, ", "); all != want {
				t.Errorf("%s: at %s the status of ports is %q, want %q", test.what, address, all, want)
			}
		}
		words := translate.PortErrors(s, []netip.Addr{v4, v6})
		for _, want := range test.words {
			if !strings.Contains(words, want) {
				t.Errorf("%s: it is said %q, want %q", test.what, words, want)
			}
		}
		if test.words == nil && words != "" {
			t.Errorf("%s: it is said %q, and all ports are forwarded", test.what, words)
		}
	}
}
