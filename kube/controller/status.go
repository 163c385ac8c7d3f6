package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"weir.io/weir/kube/translate"
)

// writeStatuses writes Services' addresses into their statuses, and whether they are forwarded. An
// address gets into a status after the directors have taken the Service, and stays while the
// Service has it.
func (c *Controller) writeStatuses(ctx context.Context, p *plan) error {
	var list []*wish
	for w := range p.unsettled {
		if w.service != nil && !equality.Semantic.DeepEqual(w.status(), w.service.Status) {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, byAge)
	return each(list, func(w *wish) error { return c.writeServiceStatus(ctx, w) })
}

// writeServiceStatus writes one status. The watch of Services then reports it, and so the later version of the
// Service is looked at.
func (c *Controller) writeServiceStatus(ctx context.Context, w *wish) error {
	changed := w.service.DeepCopy()
	changed.Status = w.status()
	_, err := c.core.Services(changed.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil // the Service is gone, and its removal is about to be read
	}
	if err != nil {
		return fmt.Errorf("write the status of %s: %w", w.name(), err)
	}
	w.told = w.told || isNews(changed.Status.LoadBalancer.Ingress, w.service.Status.LoadBalancer.Ingress)
	return nil
}

// status returns the new status.
func (w *wish) status() corev1.ServiceStatus {
	s := w.service.Status
	s.LoadBalancer.Ingress, s.Conditions = w.ingress(), w.conditions()
	return s
}

// leave removes what was said about Services that are not ours any more from their statuses.
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

// ingress returns the addresses of the status. Their mode is VIP: whatever node sees packets for
// the address first may take them, as kube-proxy does for pods of its own node. But if directors
// are pods, packets from outside pass nodes on their way to them, which must not take the packets:
// then the mode is Proxy.
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

// object is an object of a custom resource.
type object interface {
	metav1.Object
	runtime.Object
}

// putStatus replaces the status of an object, unless it is the same.
func putStatus(ctx context.Context, client rest.Interface, resource string, before, after any, o object) error {
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	err := client.Put().Resource(resource).NamespaceIfScoped(o.GetNamespace(), o.GetNamespace() != "").
		Name(o.GetName()).SubResource("status").Body(o).Do(ctx).Error()
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("write the status of %s %s: %w", resource, key(o), err)
}

// key returns the name of an object, behind its namespace if it has one, as caches have it.
func key(o metav1.Object) string { return cache.MetaObjectToName(o).String() }
