package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/gateway"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// followGateways follows the resources of Gateway API that the cluster has.
func (c *Controller) followGateways() error {
	if c.gateways == nil {
		return nil
	}
	var errs []error
	for _, one := range []struct {
		to       *cache.SharedIndexInformer
		resource string
		of       runtime.Object
	}{
		{&c.cache.gatewayClass, gatewayClasses, &gatewayv1.GatewayClass{}}, {&c.cache.gateway, gateways, &gatewayv1.Gateway{}},
		{&c.cache.tcpRoute, tcpRoutes, &gatewayv1.TCPRoute{}}, {&c.cache.udpRoute, udpRoutes, &gatewayv1.UDPRoute{}},
		{&c.cache.grant, referenceGrants, &gatewayv1.ReferenceGrant{}},
	} {
		if c.gatewayKinds[one.resource] {
			*one.to = informer(c.gateways, one.resource, "", one.of, nil)
			errs = append(errs, notify(*one.to, wishes, func(any) { c.changes.note(func(n *news) { n.gateways = true }) }))
		}
	}
	return errors.Join(errs...)
}

// wishes reports whether an object asks for something else than before. Its status does not matter:
// this process itself writes it.
func wishes(before, after any) bool {
	a, b := before.(metav1.Object), after.(metav1.Object)
	return a.GetGeneration() != b.GetGeneration() || a.GetUID() != b.GetUID() || a.GetDeletionTimestamp() != nil != (b.GetDeletionTimestamp() != nil) ||
		!maps.Equal(a.GetLabels(), b.GetLabels()) || !maps.Equal(a.GetAnnotations(), b.GetAnnotations())
}

// unsaid says which statuses of Gateway API's objects are not up to date yet.
type unsaid struct {
	classes    bool
	routes     map[*gateway.Route]bool
	unanswered string // why the directors have not taken the set; empty: they have
}

// readGateways takes in all objects of Gateway API.
func (c *Controller) readGateways(p *plan) {
	if c.gateways == nil {
		return
	}
	before := p.view
	p.view = gateway.Read(c.gatewayCluster(p))
	there := map[pool.Service]bool{}
	for _, g := range p.view.Gateways {
		there[g.Name()] = true
		request, problems := g.Request()
		request.Not = c.excluding(g.Of, p.read)
		p.ask(wish{gateway: g}, request, problems)
	}
	for _, g := range before.Gateways {
		if !there[g.Name()] {
			p.forget(g.Name())
		}
	}
	p.unsaid.classes = true
	clear(p.unsaid.routes)
	for _, r := range p.view.Routes {
		p.unsaid.routes[r] = true
	}
}

// touch marks everything that refers to a Service to be looked at.
func (p *plan) touch(s pool.Service) {
	routes, gateways := p.view.Touch(s)
	for _, r := range routes {
		p.unsaid.routes[r] = true
	}
	for _, g := range gateways {
		p.unsettled[p.byName[g.Name()]] = true
	}
}

// gatewayCluster returns what is read for Gateways.
func (c *Controller) gatewayCluster(p *plan) *gateway.Cluster {
	return &gateway.Cluster{Controller: gatewayv1.GatewayController(c.Gateways),
		Backends: func(g *gatewayv1.Gateway) translate.Target {
			group, policy := p.read.governs(g, c.namespaceOf)
			return optionsOf(c.Translate, group, policy).To()
		},
		Classes: follow.List[gatewayv1.GatewayClass](c.cache.gatewayClass), Gateways: follow.List[gatewayv1.Gateway](c.cache.gateway),
		TCPRoutes: follow.List[gatewayv1.TCPRoute](c.cache.tcpRoute), UDPRoutes: follow.List[gatewayv1.UDPRoute](c.cache.udpRoute),
		Grants:    follow.List[gatewayv1.ReferenceGrant](c.cache.grant),
		Namespace: c.labelsOf, Service: c.cache.service}
}

// judgeGateway returns no error if the API server confirms what was read of a Gateway.
func (c *Controller) judgeGateway(ctx context.Context, owner pool.Service) error {
	// It asks by path: the cluster may have had no Gateways when this process began.
	text, err := c.core.RESTClient().Get().AbsPath("/apis", gatewayv1.GroupName, gatewayv1.GroupVersion.Version).Namespace(owner.Namespace).Resource(gateways).Name(owner.Name).Do(ctx).Raw()
	if err != nil {
		return ignoreNotFound(err)
	}
	var now gatewayv1.Gateway
	if err := json.Unmarshal(text, &now); err != nil {
		return fmt.Errorf("read %s: %w", owner, err)
	}
	read := follow.One[gatewayv1.Gateway](c.cache.gateway, key(&now))
	class := follow.One[gatewayv1.GatewayClass](c.cache.gatewayClass, string(now.Spec.GatewayClassName))
	ours := class != nil && string(class.Spec.ControllerName) == c.Gateways && now.DeletionTimestamp == nil
	if c.gateways == nil || ours && (read == nil || !gateway.SameWish(read, &now)) {
		return errTooOld
	}
	return nil
}

// writeGateways writes the statuses of classes, Gateways and routes that differ from the API
// server's. An object that has changed since it was looked at is looked at next time.
func (c *Controller) writeGateways(ctx context.Context, p *plan) error {
	now := metav1.Now()
	var writes []func() error
	if p.unsaid.classes {
		for _, class := range p.view.Classes {
			if is := follow.One[gatewayv1.GatewayClass](c.cache.gatewayClass, class.Name); current(is, class) {
				after := is.DeepCopy()
				after.Status = gateway.ClassStatus(is, now)
				writes = append(writes, c.statusWrite(ctx, gatewayClasses, is.Status, after.Status, after))
			}
		}
	}
	for w := range p.unsettled {
		if w.gateway == nil {
			continue
		}
		if is := follow.One[gatewayv1.Gateway](c.cache.gateway, key(w.gateway.Of)); current(is, w.gateway.Of) {
			after := is.DeepCopy()
			after.Status = w.gateway.Status(is.Status, w.outcome(is, p.unsaid.unanswered), now)
			writes = append(writes, w.announcing(is, after, c.statusWrite(ctx, gateways, is.Status, after.Status, after)))
		}
	}
	for r := range p.unsaid.routes {
		writes = append(writes, c.routeWrite(ctx, p.view, r, now))
	}
	err := each(slices.DeleteFunc(writes, func(f func() error) bool { return f == nil }), func(f func() error) error { return f() })
	if err == nil {
		p.unsaid.classes = false
		clear(p.unsaid.routes)
	}
	return err
}

// announcing returns a write of a Gateway's status that also notes if the status names a new address,
// so that an event says so.
func (w *wish) announcing(before, after *gatewayv1.Gateway, write func() error) func() error {
	news := slices.ContainsFunc(after.Status.Addresses, func(a gatewayv1.GatewayStatusAddress) bool {
		return !slices.ContainsFunc(before.Status.Addresses, func(b gatewayv1.GatewayStatusAddress) bool { return a.Value == b.Value })
	})
	if write == nil || !news {
		return write
	}
	return func() error {
		err := write()
		w.told = w.told || err == nil
		return err
	}
}

func (c *Controller) routeWrite(ctx context.Context, view *gateway.View, r *gateway.Route, now metav1.Time) func() error {
	switch r.Kind {
	case gateway.TCPRoute:
		if is := follow.One[gatewayv1.TCPRoute](c.cache.tcpRoute, key(r.Of)); current(is, r.Of) {
			after := is.DeepCopy()
			after.Status.RouteStatus = view.RouteStatus(r, is.Status.RouteStatus, now)
			return c.statusWrite(ctx, tcpRoutes, is.Status, after.Status, after)
		}
	case gateway.UDPRoute:
		if is := follow.One[gatewayv1.UDPRoute](c.cache.udpRoute, key(r.Of)); current(is, r.Of) {
			after := is.DeepCopy()
			after.Status.RouteStatus = view.RouteStatus(r, is.Status.RouteStatus, now)
			return c.statusWrite(ctx, udpRoutes, is.Status, after.Status, after)
		}
	}
	return nil
}

// current reports whether the object that was looked at is still the same, except for its status.
func current[T any, P interface {
	*T
	metav1.Object
}](is P, seen metav1.Object) bool {
	return is != nil && is.GetUID() == seen.GetUID() && is.GetGeneration() == seen.GetGeneration()
}

// outcome returns the outcome of a Gateway. Its status has the addresses that directors have, and
// those that it had and keeps.
func (w *wish) outcome(is *gatewayv1.Gateway, unanswered string) gateway.Outcome {
	o := gateway.Outcome{Unanswered: cmp.Or(unanswered, w.waits)}
	for _, a := range w.addresses {
		had := slices.ContainsFunc(is.Status.Addresses, func(s gatewayv1.GatewayStatusAddress) bool { return s.Value == a.String() })
		if w.forwarded || had {
			o.Addresses = append(o.Addresses, a)
		}
	}
	for _, problems := range w.problems {
		o.Problems = append(o.Problems, problems...)
	}
	return o
}

// statusWrite returns a function that replaces the status of an object; nil: the status is the same.
// Others write to the same statuses: if one was faster, the write is tried again.
func (c *Controller) statusWrite(ctx context.Context, resource string, before, after any, o object) func() error {
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	return func() error { return putStatus(ctx, c.gateways, resource, before, after, o) }
}
