package controller

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/translate"
)

// reasonForwarded is the reason of the condition of a forwarded Service; all other reasons are
// those of events.
const reasonForwarded = "Forwarded"

// conditions returns a Service's new conditions: whether directors forward it, and which of its
// ports they do not forward. Conditions of others stay.
func (w *wish) conditions() []metav1.Condition {
	list := slices.Clone(w.service.Status.Conditions)
	status, reason, message := w.verdict()
	if status != "" {
		meta.SetStatusCondition(&list, metav1.Condition{Type: translate.Forwarded, Status: status, Reason: reason, Message: shortened(message), ObservedGeneration: w.service.Generation})
	}
	wrong := translate.PortErrors(w.service, w.addresses)
	ports := metav1.Condition{Type: corev1.LoadBalancerPortsError, Status: metav1.ConditionTrue, Reason: corev1.LoadBalancerPortsErrorReason, Message: wrong, ObservedGeneration: w.service.Generation}
	switch {
	case wrong != "":
		meta.SetStatusCondition(&list, ports)
	case meta.FindStatusCondition(list, corev1.LoadBalancerPortsError) != nil:
		meta.RemoveStatusCondition(&list, corev1.LoadBalancerPortsError)
	}
	return list
}

// verdict says whether directors forward a Service. An empty status: it is not known yet, and the
// condition stays as it was.
func (w *wish) verdict() (status metav1.ConditionStatus, reason, message string) {
	no := func(of translate.Reason, stages ...stage) (metav1.ConditionStatus, string, string) {
		var texts []string
		for _, at := range stages {
			for _, p := range w.problems[at] {
				texts = append(texts, p.Message)
			}
		}
		return metav1.ConditionFalse, string(of), strings.Join(texts, "; ")
	}
	switch {
	case len(w.addresses) == 0:
		return no(translate.NoAddress, asking, assigning, claiming)
	case len(w.made.services) == 0:
		return no(translate.Unsupported, forwarding)
	case len(w.problems[accepting]) > 0:
		return no(translate.NotForward, accepting)
	case w.waits != "":
		return "", "", ""
	case !w.forwarded:
		return no(translate.NotForward, forwarding)
	}
	for i := range w.made.services {
		if len(w.made.services[i].Backends) > 0 {
			return metav1.ConditionTrue, reasonForwarded, "it is reached at " + addressText(w)
		}
	}
	return no(translate.NoBackends, forwarding)
}

// left returns a Service without the conditions from when it was a load balancer of ours; nil: it
// has none.
func left(s *corev1.Service) *corev1.Service {
	if s == nil || s.DeletionTimestamp != nil || meta.FindStatusCondition(s.Status.Conditions, translate.Forwarded) == nil {
		return nil
	}
	after := s.DeepCopy()
	meta.RemoveStatusCondition(&after.Status.Conditions, translate.Forwarded)
	meta.RemoveStatusCondition(&after.Status.Conditions, corev1.LoadBalancerPortsError)
	return after
}
