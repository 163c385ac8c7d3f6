package controller

import (
	"context"
	"errors"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/v1alpha1"
)

// lookAgain is how often the controller looks which kinds of resources the cluster has: definitions
// may be installed and removed at any time.
const lookAgain = 10 * time.Second

// errOtherKinds is why everything has to be read anew.
var errOtherKinds = errors.New("the cluster has other kinds of resources than before")

// findResources finds out which of weir's and of Gateway API's resources the cluster has. It asks
// until it gets an answer or the context ends.
func (c *Controller) findResources(ctx context.Context) (err error) {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		if c.resources, err = resourcesOf(ctx, c.rest); err == nil {
			if c.gateways, c.gatewayKinds, err = gatewaysOf(ctx, c.rest); err == nil {
				return nil
			}
		}
		c.log.Warn("it is not known whether there are custom resources; trying again", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// lookForKinds ends the run when the cluster has other kinds than at its beginning. While the API
// server does not answer, nothing counts as changed.
func (c *Controller) lookForKinds(ctx context.Context, end context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookAgain):
		}
		resources, err1 := resourcesOf(ctx, c.rest)
		gateways, kinds, err2 := gatewaysOf(ctx, c.rest)
		if err1 != nil || err2 != nil {
			continue
		}
		was, is := c.resources, resources
		if (was.client == nil) != (is.client == nil) || was.directors != is.directors || was.balancers != is.balancers || (c.gateways == nil) != (gateways == nil) || !maps.Equal(c.gatewayKinds, kinds) {
			end(errOtherKinds)
			return
		}
	}
}

// custom says which of weir's custom resources a cluster has.
type custom struct {
	client rest.Interface // nil: none
	// directors says that the cluster has those for directors, too: older definitions lack them.
	directors bool
	balancers bool // it has LoadBalancers
}

// resourcesOf returns which of weir's custom resources the cluster has. Half an installation counts
// as none.
func resourcesOf(ctx context.Context, config *rest.Config) (none custom, err error) {
	client, err := follow.Resources(config)
	if err != nil {
		return none, err
	}
	there, err := follow.Served(ctx, client, v1alpha1.GroupVersion)
	if err != nil || !there[v1alpha1.AddressPools] || !there[v1alpha1.ServicePolicies] {
		return none, err
	}
	directors := there[v1alpha1.DirectorGroups] && there[v1alpha1.BGPPeers] && there[v1alpha1.DirectorSets]
	return custom{client: client, directors: directors, balancers: directors && there[v1alpha1.LoadBalancers]}, nil
}

// The resources of Gateway API.
const (
	gatewayClasses  = "gatewayclasses"
	gateways        = "gateways"
	tcpRoutes       = "tcproutes"
	udpRoutes       = "udproutes"
	referenceGrants = "referencegrants"
)

// gatewaysOf returns a client of Gateway API's resources and which of them the cluster has, or nil
// if it has no Gateways. Half an installation counts as none.
func gatewaysOf(ctx context.Context, config *rest.Config) (rest.Interface, map[string]bool, error) {
	version := schema.GroupVersion(gatewayv1.GroupVersion)
	client, err := follow.Client(config, version, gatewayv1.Install)
	if err != nil {
		return nil, nil, err
	}
	there, err := follow.Served(ctx, client, version)
	if err != nil || !there[gatewayClasses] || !there[gateways] {
		return nil, nil, err
	}
	return client, there, nil
}
