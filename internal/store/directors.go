package store

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// What a director's process is known by to the others of its group is beside the state:
//
//	PREFIX/directors/ADDRESS
//
// The value is the fingerprint of the certificate that the process has made. Only
// directors may write there: whoever may write there is one.

// renewFingerprint is the time between two looks whether what was written is still there.
const renewFingerprint = 5 * time.Second

func (e *Etcd) directorsKey() string { return e.options.Prefix + "/directors/" }

// Fingerprints are those of the group's directors.
type Fingerprints struct {
	prefix string

	mu     sync.Mutex
	listed bool
	by     map[netip.Addr]string
}

// Fingerprint returns what the director with an address has written, "" if nothing; known
// is false as long as etcd has not said.
func (f *Fingerprints) Fingerprint(director netip.Addr) (fingerprint string, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.by[director], f.listed
}

// FollowFingerprints follows what directors write, until the context ends. What was known
// stays while etcd cannot be reached.
func (e *Etcd) FollowFingerprints(ctx context.Context) *Fingerprints {
	f := &Fingerprints{prefix: e.directorsKey(), by: map[netip.Addr]string{}}
	go func() {
		pause := firstPause
		for ctx.Err() == nil {
			at, err := e.listFingerprints(ctx, f)
			if err != nil {
				e.options.Log.Debug("the directors' fingerprints cannot be read", "error", err)
				wait(ctx, pause)
				pause = min(2*pause, lastPause)
				continue
			}
			pause = firstPause
			e.watchFingerprints(ctx, f, at)
		}
	}()
	return f
}

func (e *Etcd) listFingerprints(ctx context.Context, f *Fingerprints) (revision int64, err error) {
	response, err := e.commit(ctx, nil, clientv3.OpGet(f.prefix, clientv3.WithPrefix()))
	if err != nil {
		return 0, err
	}
	by := map[netip.Addr]string{}
	for _, kv := range response.Responses[0].GetResponseRange().Kvs {
		if a, err := netip.ParseAddr(strings.TrimPrefix(string(kv.Key), f.prefix)); err == nil {
			by[a] = string(kv.Value)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.by, f.listed = by, true
	return response.Header.Revision, nil
}

// watchFingerprints takes what directors write after a revision of etcd. It returns when
// it cannot go on, and from time to time: a network can lose a watch without either end
// knowing.
func (e *Etcd) watchFingerprints(ctx context.Context, f *Fingerprints, since int64) {
	client, err := e.connect()
	if err != nil {
		wait(ctx, firstPause)
		return
	}
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), lookAgain)
	defer cancel()
	for response := range client.Watch(ctx, f.prefix, clientv3.WithPrefix(), clientv3.WithRev(since+1)) {
		if response.Err() != nil {
			wait(ctx, firstPause)
			return
		}
		f.mu.Lock()
		for _, event := range response.Events {
			a, err := netip.ParseAddr(strings.TrimPrefix(string(event.Kv.Key), f.prefix))
			switch {
			case err != nil:
			case event.Type == clientv3.EventTypeDelete:
				delete(f.by, a)
			default:
				f.by[a] = string(event.Kv.Value)
			}
		}
		f.mu.Unlock()
	}
}

// KeepFingerprint writes by what this process is known, under each of its addresses, and
// writes it again where etcd has lost it, until the context ends. What is left of it when the process has ended is
// of no use to anybody, and goes with its lease.
func (e *Etcd) KeepFingerprint(ctx context.Context, addresses []netip.Addr, fingerprint string) {
	pause := firstPause
	for said := false; ctx.Err() == nil; {
		err := e.putFingerprint(ctx, addresses, fingerprint)
		if err != nil {
			if !said {
				e.options.Log.Warn("the group's directors do not know this one yet", "error", err)
			}
			said = true
			wait(ctx, pause)
			pause = min(2*pause, lastPause)
			continue
		}
		said, pause = false, firstPause
		wait(ctx, renewFingerprint)
	}
}

func (e *Etcd) putFingerprint(ctx context.Context, addresses []netip.Addr, fingerprint string) error {
	lease, err := e.renewLease(ctx)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		e.mu.Lock()
		e.lease = clientv3.NoLease // it has ended, or etcd has lost it
		e.mu.Unlock()
		lease, err = e.renewLease(ctx)
	}
	if err != nil {
		return err
	}
	for _, a := range addresses {
		key := e.directorsKey() + a.String()
		same := clientv3.Compare(clientv3.Value(key), "=", fingerprint)
		_, err := e.transact(ctx, func(t clientv3.Txn) clientv3.Txn {
			return t.If(same).Else(clientv3.OpPut(key, fingerprint, clientv3.WithLease(lease)))
		})
		if err != nil {
			return fmt.Errorf("write by what this director is known: %w", err)
		}
	}
	return nil
}
