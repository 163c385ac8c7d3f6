package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
)

// waitForBackends waits until the director's service has these backends: NAME WEIGHT STATE, ...
func (l *lab) waitForBackends(service, want string) {
	l.t.Helper()
	l.waitForService(service, "the backends "+want, func(s model.Service) bool {
		var list []string
		for _, b := range s.Backends {
			list = append(list, fmt.Sprintf("%s %d %s", b.Name, b.Weight, b.State))
		}
		return strings.Join(list, ", ") == want
	})
}

// Pods get the share in their label as soon as they have it; directors in a zone use only the
// endpoints meant for it.
func TestWeightsAndZones(t *testing.T) {
	l := newLab(t)
	l.config = l.write("zone.yaml", "zone: east\nmtu: 1400\n"+l.read(l.config))
	l.controller("one")
	const service = "default/web/80-tcp"
	l.pods("web", 1, 2)
	l.service("web", func(s *corev1.Service) {
		no := false
		s.Spec.AllocateLoadBalancerNodePorts = &no
	})
	l.waitForBackends(service, "pod1 100 active, pod2 100 active")
	l.waitForService(service, "backends with MTU 1400", func(s model.Service) bool { return s.Backends[0].MTU == 1400 })

	if _, err := l.core.ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	no := false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod1", Labels: map[string]string{"weir.io/weight": "30"}},
		Spec: corev1.PodSpec{AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
	if _, err := l.core.Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.waitForBackends(service, "pod1 30 active, pod2 100 active")
	for label, want := range map[string]string{`"7"`: "7", `"x"`: "100"} {
		patch := fmt.Appendf(nil, `{"metadata": {"labels": {"weir.io/weight": %s}}}`, label)
		if _, err := l.core.Pods(namespace).Patch(t.Context(), "pod1", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		l.waitForBackends(service, "pod1 "+want+" active, pod2 100 active")
	}
	l.event("web", "Unsupported", `weir.io/weight of pod1: weight "x" is not a number`)
	patch := []byte(`{"metadata": {"labels": {"weir.io/weight": "5"}}}`)
	if _, err := l.core.Pods(namespace).Patch(t.Context(), "pod1", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	l.waitForBackends(service, "pod1 5 active, pod2 100 active")
	patch = []byte(`{"metadata": {"labels": {"weir.io/weight": null}}}`)
	if _, err := l.core.Pods(namespace).Patch(t.Context(), "pod1", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	l.waitForBackends(service, "pod1 100 active, pod2 100 active")

	slice, err := l.discovery.EndpointSlices(namespace).Get(t.Context(), "web-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, zone := range []string{"west", "east"} {
		slice.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
	l.putSlice(slice)
	l.waitForBackends(service, "pod1 100 draining, pod2 100 active")
	s, err := l.core.Services(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if in := s.Status.LoadBalancer.Ingress; len(in) != 1 || in[0].IPMode == nil || *in[0].IPMode != corev1.LoadBalancerIPModeVIP {
		t.Errorf("its status is %+v, want one address of mode VIP", in)
	}
}
