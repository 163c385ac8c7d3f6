// Package controller keeps what directors forward, and the status of Services, as Kubernetes says.
// It works by level: a pass reads the state of each Service that a change may concern, and makes it
// true. Now and then a pass does so for all Services, so it does not matter what was missed, or
// what an earlier process had begun.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

const (
	// together is how long a pass waits for further changes that may belong together.
	together = 20 * time.Millisecond
	// again is how often everything is compared anew, even if nothing is known to have changed.
	again = 30 * time.Second
	// soon is how long until the next pass while directors refuse something: they do not say when
	// they would take it.
	soon = 5 * time.Second
	// The first and the longest wait after a failure.
	firstRetry, lastRetry = 200 * time.Millisecond, 15 * time.Second
)

// Options say what a controller does.
type Options struct {
	Class     string      // of load balancers that it serves
	Default   bool        // it serves Services without a class, too
	Identity  string      // of this process, in events
	Pools     []pool.Pool // in addition to the cluster's
	Translate translate.Options
	Owner     string      // of the set that it writes
	Directors []*Director // of one group; none: all Services are DirectorGroups'
	Namespace string      // of the Leases of directors that are nodes
	Gateways  string      // the controller name of its GatewayClasses
	NoWeights bool        // no Pods are read, and so no weights of Pods
	Quotas    Quotas      // of namespaces
}

// Controller is a controller that runs. Use New.
type Controller struct {
	Options
	log       *slog.Logger
	core      corev1client.CoreV1Interface
	addresses networkingv1client.IPAddressInterface
	rest      *rest.Config
	resources custom         // which custom resources there are
	gateways  rest.Interface // the client of Gateway API; nil: the cluster does not have it
	// gatewayKinds are the resources of Gateway API that the cluster has.
	gatewayKinds map[string]bool

	cache   *caches
	changes *changes
	queue   workqueue.TypedRateLimitingInterface[struct{}]
	claims  *claimWriter
	plan    *plan
	set     setWriter
	groups  *groupWriter
	heard   *heard
	chosen  map[types.UID][]string // directors, by group
	ways    map[types.UID]*ways    // by group
	silence time.Time              // when the next node's agent becomes silent; zero: never
	counts  map[string]*counted    // by the key of a LoadBalancer
	looked  time.Time              // when the statuses of all LoadBalancers were last looked at
	lookAt  time.Time              // when they are looked at again; zero: when something changes
	events  *reporter
}

// New returns a controller that uses the API server of this configuration.
func New(config *rest.Config, o Options, log *slog.Logger) (*Controller, error) {
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	networking, err := networkingv1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	return &Controller{Options: o, log: log, core: core, addresses: networking.IPAddresses(), rest: config}, nil
}

// Run does the work until the context ends. Only one process at a time may run it: Elect sees to
// that. When the cluster gets other kinds of resources, everything is read anew.
func (c *Controller) Run(ctx context.Context) error {
	for {
		if err := c.run(ctx); !errors.Is(err, errOtherKinds) || ctx.Err() != nil {
			return err
		}
		c.log.Info("the cluster has other kinds of resources now; all is read anew")
	}
}

// run begins anew, and works until the context ends or the cluster has other kinds of resources.
func (c *Controller) run(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	events, err := corev1client.NewForConfig(c.rest) // a client of its own, so that events hold up nothing else
	if err != nil {
		return fmt.Errorf("make a client of the API server: %w", err)
	}
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: events.Events("")})
	c.events = newReporter(broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "weir-kube", Host: c.Identity}))
	c.claims = newClaimWriter(c.addresses)
	c.plan = newPlan()
	c.plan.groupOfSets, c.plan.written = c.groupOfSets, c.writtenServices
	c.set = setWriter{directors: c.Directors, owner: c.Owner, log: c.log}
	c.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[struct{}](firstRetry, lastRetry))
	go func() {
		<-ctx.Done()
		c.queue.ShutDown()
	}()
	if err := c.findResources(ctx); err != nil {
		return err
	}
	c.groups, c.heard = &groupWriter{client: c.resources.client, log: c.log, report: c.reportGroup}, newHeard()
	c.chosen, c.ways, c.counts = map[types.UID][]string{}, map[types.UID]*ways{}, map[string]*counted{}
	if c.resources.client == nil && len(c.Pools) == 0 {
		c.log.Warn("no Service will get an address: the cluster has no AddressPools and the file has no pools", "resource", v1alpha1.AddressPools+"."+v1alpha1.GroupVersion.Group)
	}
	if !c.resources.directors && len(c.Directors) == 0 {
		c.log.Warn("no Service will be forwarded: the cluster has no DirectorGroups and the file has no directors", "resource", v1alpha1.DirectorGroups+"."+v1alpha1.GroupVersion.Group)
	}
	// Nothing is read before the lease is taken: it could be older than what the last holder did.
	c.changes = newChanges(func() { c.queue.AddAfter(struct{}{}, together) })
	if c.cache, err = newCaches(c.rest, c.resources, !c.NoWeights, c.changes, c.heard); err != nil {
		return err
	}
	if err := c.followGateways(); err != nil {
		return err
	}
	if err := c.cache.start(ctx); err != nil {
		return err
	}
	c.log.Info("following the cluster", "services", len(c.cache.services()), "class", c.Class)
	c.queue.Add(struct{}{})
	go c.lookForKinds(ctx, end)
	return c.work(ctx)
}

// work makes one pass after the other until the context ends.
func (c *Controller) work(ctx context.Context) error {
	for {
		item, ended := c.queue.Get()
		if ended {
			return context.Cause(ctx)
		}
		next, err := c.pass(ctx)
		c.queue.Done(item)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			c.log.Warn("not everything could be made so; trying again", "error", err)
			c.queue.AddRateLimited(item)
			continue
		}
		c.queue.Forget(item)
		c.queue.AddAfter(item, next)
	}
}

// pass makes true what may not be true yet, and says when to look again even if nothing changes.
func (c *Controller) pass(ctx context.Context) (next time.Duration, err error) {
	p, now := c.plan, time.Now()
	c.look(now)
	leaves := p.drained(now)
	gone := sooner(c.staff(p.read, now), c.silence)
	p.govern(c.namespaceOf)
	claimed := c.claims.make(ctx, p.assign())
	p.without(claimed.taken)
	c.hearWays(p)
	p.translate(c.Translate, c.cache.slices, c.namespaceOf)
	c.askWays(p)
	p.lookAtOthers()
	c.set.ask(ctx, p)
	p.fit(c.Quotas, c.set.limits)
	p.fitNodePorts()
	p.unsaid.unanswered = ""
	refused, putErr := c.put(ctx, p, now)
	p.refuse(refused)
	var statusErr, releaseErr error
	var waits time.Time
	if putErr == nil {
		waits = p.await(c.groups.groups, now)
		// Only now no director forwards a released address, and no status has it: the next Service
		// may get it.
		if statusErr = errors.Join(c.writeStatuses(ctx, p), c.leave(ctx, p)); statusErr == nil {
			releaseErr = c.release(ctx, c.groups.without(p.release))
		}
	} else {
		p.pending(putErr)
	}
	resourcesErr := errors.Join(c.writeResources(ctx, p), c.writeGroups(ctx, p), c.writeBalancers(ctx, p, now))
	routes := slices.Collect(maps.Keys(p.unsaid.routes))
	gatewaysErr := c.writeGateways(ctx, p)
	c.events.reportRoutes(p.view, routes, time.Now())
	unsaid := c.events.report(p, time.Now())
	p.settle(errors.Join(claimed.err, putErr, statusErr, gatewaysErr), unsaid)
	switch next = again; {
	case len(unsaid) > 0:
		next = time.Second
	case len(refused) > 0:
		next = soon
	}
	if first := sooner(sooner(sooner(sooner(gone, c.groups.due()), waits), leaves), c.lookAt); !first.IsZero() {
		next = min(next, max(time.Until(first), together))
	}
	return next, errors.Join(claimed.err, putErr, releaseErr, statusErr, resourcesErr, gatewaysErr)
}

// put tells the file's directors, and those of groups, what to forward.
func (c *Controller) put(ctx context.Context, p *plan, now time.Time) (refused []refusal, err error) {
	if len(c.Directors) > 0 {
		refused, err = c.set.put(ctx, p)
		if errors.Is(err, errWhole) && c.set.countOthers(ctx) { // others have taken a part
			p.fit(c.Quotas, c.set.limits)
			p.fitNodePorts()
			refused, err = c.set.put(ctx, p)
		}
	} else {
		refused = p.unselected()
	}
	refused = append(refused, p.beyond()...)
	if !c.resources.directors {
		return refused, err
	}
	more, groupsErr := c.groups.put(ctx, p, now)
	return append(refused, append(more, p.unstaffed()...)...), errors.Join(err, groupsErr)
}

// look takes the news into the plan; after long enough, it takes in everything.
func (c *Controller) look(now time.Time) {
	p, n := c.plan, c.changes.take()
	if now.Sub(p.allSeen) >= again {
		p.allSeen, n.all = now, true
		for _, s := range c.cache.services() {
			n.services[translate.Of(s)] = true
		}
		for name := range p.byName { // the Service may be gone
			n.services[name] = true
		}
		for _, a := range c.cache.addresses() {
			n.addresses[a] = true
		}
	}
	if n.sets || n.all {
		c.groups.follow(follow.List[v1alpha1.DirectorSet](c.cache.set))
	}
	if n.nodes || n.all || c.silent(now) {
		p.setNodes(c.nodes(now))
	}
	if (n.resources || n.all) && c.readResources(p) {
		n.gateways, n.balancers = true, true
		for name := range p.byName {
			n.services[name] = true
		}
	}
	if n.all || len(n.pods) > 0 {
		c.cache.readWeights()
		for _, name := range c.cache.servedByPods(n.pods) {
			n.services[name] = true
		}
	}
	if n.gateways || n.all {
		c.readGateways(p)
	}
	if n.balancers || n.all {
		c.readBalancers(p, now)
	}
	for name := range n.services {
		p.touch(name)
		if name.Kind != "" {
			continue // a Gateway or a LoadBalancer
		}
		if s := c.cache.service(name); s != nil && c.isOurs(s) {
			p.want(s, c.excluding(s, p.read))
		} else {
			p.forget(name)
			if s != nil && s.Spec.Type != corev1.ServiceTypeLoadBalancer && left(s) != nil { // else it may be another controller's
				p.others[name] = true
			}
		}
	}
	for a := range n.addresses {
		claim, read := c.cache.claim(a)
		c.claims.see(a, claim, read)
	}
	for a, holders := range c.claims.news(now) {
		p.allocations.Claim(a, holders)
	}
}

func (c *Controller) isOurs(s *corev1.Service) bool {
	class := s.Spec.LoadBalancerClass
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.DeletionTimestamp == nil &&
		(class != nil && *class == c.Class || class == nil && c.Default)
}
