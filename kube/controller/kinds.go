package controller

import (
	"context"
	"errors"
	"maps"
	"time"
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
		if (was.client == nil) != (is.client == nil) || was.directors != is.directors || (c.gateways == nil) != (gateways == nil) || !maps.Equal(c.gatewayKinds, kinds) {
			end(errOtherKinds)
			return
		}
	}
}
