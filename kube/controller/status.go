package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/translate"
)

// writeStatuses tells Services their addresses, and whether they are forwarded. An address comes
// into a status after the directors have taken the Service, and stays while it is the Service's.
func (c *Controller) writeStatuses(ctx context.Context, p *plan) error {
	var list []*wish
	for w := range p.unsettled {
		if w.service != nil && !equality.Semantic.DeepEqual(w.status(), w.service.Status) {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, byAge)
	var errs []error
	var mu sync.Mutex
	each(list, func(w *wish) {
		if err := c.tell(ctx, w); err != nil {
			mu.Lock()
			errs = append(errs, fmt.Errorf("write the status of %s: %w", w.name(), err))
			mu.Unlock()
		}
	})
	return joined(errs)
}

// tell writes one status. Who has it read then is told of it, and so a later version of the
// Service is looked at.
func (c *Controller) tell(ctx context.Context, w *wish) error {
	changed := w.service.DeepCopy()
	changed.Status = w.status()
	_, err := c.core.Services(changed.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil // it is gone, which is about to be read
	}
	w.told = w.told || err == nil && isNews(changed.Status.LoadBalancer.Ingress, w.service.Status.LoadBalancer.Ingress)
	return err
}

// status returns what the status is to say.
func (w *wish) status() corev1.ServiceStatus {
	s := w.service.Status
	s.LoadBalancer.Ingress, s.Conditions = w.ingress(), w.conditions()
	return s
}

// leave takes out of the statuses of Services that are not ours any more what was said of them.
func (c *Controller) leave(ctx context.Context, p *plan) error {
	var errs []error
	for name := range p.others {
		if after := left(c.cache.service(name)); after != nil {
			if _, err := c.core.Services(name.Namespace).UpdateStatus(ctx, after, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("write the status of %s, which is not ours any more: %w", name, err))
				continue
			}
		}
		delete(p.others, name)
	}
	return joined(errs)
}

// isNews reports whether a status names an address that it has not named before.
func isNews(now, before []corev1.LoadBalancerIngress) bool {
	return slices.ContainsFunc(now, func(a corev1.LoadBalancerIngress) bool {
		return !slices.ContainsFunc(before, func(b corev1.LoadBalancerIngress) bool { return a.IP == b.IP })
	})
}

// ingress returns what the status is to say. Its mode is VIP: packets for the address may be
// taken by whatever node sees them first, as by kube-proxy for pods of its own node. But on
// their way to directors that are pods packets from outside come by nodes, which are to let
// them pass: then it is Proxy.
func (w *wish) ingress() []corev1.LoadBalancerIngress {
	var list []corev1.LoadBalancerIngress
	mode := corev1.LoadBalancerIPModeVIP
	if w.group != nil && w.group.Of.Spec.Namespace != "" {
		mode = corev1.LoadBalancerIPModeProxy
	}
	for _, a := range w.addresses {
		had := slices.ContainsFunc(w.service.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool { return i.IP == a.String() })
		if w.forwarded || had {
			list = append(list, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode, Ports: translate.PortStatuses(w.service, a)})
		}
	}
	return list
}
