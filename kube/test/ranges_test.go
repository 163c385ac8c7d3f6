package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
)

// A Service with spec.loadBalancerSourceRanges is only for clients in these ranges.
func TestSourceRanges(t *testing.T) {
	l := newLab(t)
	l.controller("one")
	l.pods("web", 1)
	l.service("web", func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "10.0.0.0/24"} })
	l.waitForAddresses("web", "203.0.113.1")
	l.reaches("203.0.113.1", "pod1")

	become := func(text string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"spec": {"loadBalancerSourceRanges": [%q]}}`, text)
		if _, err := l.core.Services(namespace).Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		l.waitForService("default/web/80-tcp", "the source range "+text, func(s model.Service) bool {
			return slices.Equal(s.SourceRanges, []netip.Prefix{netip.MustParsePrefix(text)})
		})
	}
	become("192.0.2.0/24")
	if pod, err := l.ask("203.0.113.1"); err == nil {
		t.Errorf("%s answers a client that is in no source range", pod)
	}
	become("10.0.0.2/32")
	l.reaches("203.0.113.1", "pod1")
}
