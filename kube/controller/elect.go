package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Election is how one of several processes is chosen.
type Election struct {
	Namespace, Name string // of the Lease
	// Lease is how long it holds without being renewed.
	Lease time.Duration
}

// Elect runs the controller whenever this process holds the Lease, until the context ends. It gives
// the Lease back then, so that the next process need not wait. If the Lease is lost, because the
// API server is away for example, everything begins anew once this process holds it again: from
// what the API server has then.
func (c *Controller) Elect(ctx context.Context, e Election) error {
	client, err := coordinationv1client.NewForConfig(c.rest)
	if err != nil {
		return fmt.Errorf("make a client of the API server: %w", err)
	}
	lock := &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}, Client: client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: c.Identity}}
	for {
		if err := c.term(ctx, e, lock); err != nil {
			return err
		}
		c.log.Warn("the lease is lost: it could not be renewed, or another process has it", "lease", e.Namespace+"/"+e.Name)
	}
}

// term waits for the Lease, and works until it is lost: then it returns nil. An error says why
// there is no next term.
func (c *Controller) term(ctx context.Context, e Election, lock resourcelock.Interface) error {
	ended := make(chan error, 1)
	leading, stop := context.WithCancel(ctx)
	defer stop()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: e.Lease, RenewDeadline: e.Lease * 2 / 3, RetryPeriod: e.Lease / 8, ReleaseOnCancel: true, Name: e.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				c.log.Info("this process has the lease", "lease", e.Namespace+"/"+e.Name, "identity", c.Identity)
				ended <- c.Run(ctx)
				stop() // an error ends the election, too
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				if identity != c.Identity {
					c.log.Info("another process has the lease", "lease", e.Namespace+"/"+e.Name, "identity", identity)
				}
			},
		}})
	if err != nil {
		return fmt.Errorf("stand for election: %w", err)
	}
	elector.Run(leading)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// This process did lead, and the next term must not begin while work of this one is under way.
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
