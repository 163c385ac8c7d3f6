package etcdclient

import (
	"context"
	"errors"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Lease keeps keys in etcd while this process renews it, and for some time after.
type Lease struct {
	client  *Client
	seconds int64
	what    string

	mu sync.Mutex
	id clientv3.LeaseID // NoLease: none that is known to live
}

// NewLease returns a lease that etcd does not know yet, and that keeps keys for so many seconds after
// it was last used. Errors say what should be kept.
func (c *Client) NewLease(seconds int64, what string) *Lease {
	return &Lease{client: c, seconds: seconds, what: what}
}

// Use prolongs the lease, and has keys written under it. If etcd loses the lease before they are,
// they are written once more, under a new one.
func (l *Lease) Use(ctx context.Context, write func(clientv3.LeaseID) error) error {
	for again := false; ; again = true {
		id, err := l.renew(ctx)
		if err != nil {
			return err
		}
		if err = write(id); again || !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
	}
}

// renew prolongs the lease, and returns it. If there is none, or etcd has lost it, it is a new one:
// there are no keys under it yet.
func (l *Lease) renew(ctx context.Context) (clientv3.LeaseID, error) {
	client, err := l.client.Connect()
	if err != nil {
		return clientv3.NoLease, err
	}
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.id != clientv3.NoLease {
		_, err := client.KeepAliveOnce(ctx, l.id)
		if err == nil {
			return l.id, nil
		}
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return clientv3.NoLease, l.client.failed(" to keep "+l.what, err)
		}
		l.id = clientv3.NoLease
	}
	granted, err := client.Grant(ctx, l.seconds)
	if err != nil {
		return clientv3.NoLease, l.client.failed(" to keep "+l.what, err)
	}
	l.id = granted.ID
	return l.id, nil
}
