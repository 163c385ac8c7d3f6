package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/translate"
)

// writeStatuses tells Services their addresses. An address comes into a status after the
// directors have taken the Service, and stays while it is the Service's.
func (c *Controller) writeStatuses(ctx context.Context, p *plan) error {
	var errs []error
	for _, w := range p.of {
		want, has := w.ingress(), w.service.Status.LoadBalancer.Ingress
		if slices.EqualFunc(want, has, func(a, b corev1.LoadBalancerIngress) bool { return a.IP == b.IP && b.Hostname == "" }) {
			continue
		}
		changed := w.service.DeepCopy()
		changed.Status.LoadBalancer.Ingress = want
		_, err := c.core.Services(changed.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("write the status of %s: %w", translate.Of(w.service), err))
			continue
		}
		w.told = err == nil && len(want) > 0
	}
	return errors.Join(errs...)
}

// ingress returns what the status is to say.
func (w *wish) ingress() []corev1.LoadBalancerIngress {
	var list []corev1.LoadBalancerIngress
	for _, a := range w.addresses {
		had := slices.ContainsFunc(w.service.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool { return i.IP == a.String() })
		if w.forwarded || had {
			list = append(list, corev1.LoadBalancerIngress{IP: a.String()})
		}
	}
	return list
}
