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

	"weir.io/weir/internal/model"
)

// The keys by which the other directors of a group know a director's process are beside the state:
//
//	PREFIX/directors/ADDRESS
//	PREFIX/directors/ADDRESS/lives
//
// The value is the fingerprint of the certificate that the process has made. The first key stays
// for days, so that directors that cannot reach etcd go on with each other; the second disappears
// some seconds after the process. Only directors may write there: a client that may write there
// counts as one.

// renewFingerprint is the time between two checks that the written keys are still there.
const renewFingerprint = 5 * time.Second

// livesFor is how long a silent process counts as alive, in seconds: it may be late with two of its
// checks.
const livesFor = 15

const livesKey = "/lives"

func (e *Etcd) directorsKey() string { return e.options.Prefix + "/directors/" }

// Fingerprints are those of the group's directors.
type Fingerprints struct {
	prefix string

	mu     sync.Mutex
	listed bool
	by     map[netip.Addr]string
	lives  map[netip.Addr]bool
}

// Fingerprint returns what the director with an address has written, "" if nothing; known
// is false as long as etcd has not said.
func (f *Fingerprints) Fingerprint(director netip.Addr) (fingerprint string, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.by[director], f.listed
}

// Lives returns whether the director with an address has said in the last seconds that it is there.
func (f *Fingerprints) Lives(director netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lives[director]
}

// note takes a key's value, or its end. The mutex is held.
func (f *Fingerprints) note(key string, value []byte, gone bool) {
	name, lives := strings.CutSuffix(strings.TrimPrefix(key, f.prefix), livesKey)
	a, err := netip.ParseAddr(name)
	switch {
	case err != nil: // written by another version
	case lives && gone:
		delete(f.lives, a)
	case lives:
		f.lives[a] = true
	case gone:
		delete(f.by, a)
	default:
		f.by[a] = string(value)
	}
}

// FollowFingerprints follows what directors write, until the context ends. What was known
// stays while etcd cannot be reached.
func (e *Etcd) FollowFingerprints(ctx context.Context) *Fingerprints {
	f := &Fingerprints{prefix: e.directorsKey(), by: map[netip.Addr]string{}, lives: map[netip.Addr]bool{}}
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
	f.mu.Lock()
	defer f.mu.Unlock()
	f.by, f.lives, f.listed = map[netip.Addr]string{}, map[netip.Addr]bool{}, true
	for _, kv := range response.Responses[0].GetResponseRange().Kvs {
		f.note(string(kv.Key), kv.Value, false)
	}
	return response.Header.Revision, nil
}

// watchFingerprints takes what directors write after a revision of etcd. It returns when it cannot
// go on, and from time to time: a network can lose a watch without either end noticing.
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
			f.note(string(event.Kv.Key), event.Kv.Value, event.Type == clientv3.EventTypeDelete)
		}
		f.mu.Unlock()
	}
}

// KeepFingerprint writes this process's fingerprint under each of its addresses, and that it lives,
// and writes both again if etcd has lost them, until the context ends. After the process has ended
// the keys are of no use, and disappear with their leases.
func (e *Etcd) KeepFingerprint(ctx context.Context, addresses []netip.Addr, fingerprint string) {
	pause, life, same := firstPause, lease{seconds: livesFor}, namesake{}
	defer e.options.over(partFlows, partNamesake) // nobody looks any more
	for said := false; ctx.Err() == nil; {
		over, err := e.putFingerprint(ctx, &life, addresses, fingerprint)
		if err != nil {
			if !said && ctx.Err() == nil {
				e.options.Log.Warn("the group's directors do not know this one yet", "error", err)
				e.options.warn(model.ProblemGroup, partFlows, "the group's directors do not know this one, and share no flows with it", err)
			}
			said = true
			wait(ctx, pause)
			pause = min(2*pause, lastPause)
			continue
		}
		if said {
			e.options.warn(model.ProblemGroup, partFlows, "", nil)
		}
		said, pause = false, firstPause
		e.options.warn(model.ProblemGroup, partNamesake, "two directors are one to the group", same.note(over))
		wait(ctx, renewFingerprint)
	}
}

// namesake notices another process that says that it is the director with this one's address, such
// as that of a copied host. This process's predecessor may have written once since it began.
type namesake struct {
	began   bool
	written int        // how often in a row another fingerprint stood where this process's was written
	address netip.Addr // where
	quiet   int        // how often in a row none has
}

// Another process writes as often as this one.
const (
	namesakeAfter = 2
	namesakeOver  = 3
)

// note takes the address over which another process has written, if any, and returns what is wrong.
func (n *namesake) note(over netip.Addr) error {
	switch {
	case !over.IsValid():
		if n.quiet++; n.quiet >= namesakeOver {
			n.written = 0
		}
	case n.began:
		n.quiet, n.address = 0, over
		n.written++
	}
	n.began = true
	if n.written < namesakeAfter {
		return nil
	}
	return fmt.Errorf("another process also says that it is director %v: give each host its own address in director.group, for example where one is a copy of the other", n.address)
}

// putFingerprint writes what another process or etcd has changed, and returns the address over which
// another process has written.
func (e *Etcd) putFingerprint(ctx context.Context, life *lease, addresses []netip.Addr, fingerprint string) (over netip.Addr, err error) {
	stays, err := e.renewLease(ctx)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		e.mu.Lock()
		e.lease = clientv3.NoLease // the lease has ended, or etcd has lost it
		e.mu.Unlock()
		stays, err = e.renewLease(ctx)
	}
	if err != nil {
		return over, err
	}
	if err := e.prolong(ctx, life); err != nil {
		return over, err
	}
	for _, a := range addresses {
		key := e.directorsKey() + a.String()
		for _, one := range []struct {
			key   string
			lease clientv3.LeaseID
		}{{key, stays}, {key + livesKey, life.id}} {
			same := []clientv3.Cmp{clientv3.Compare(clientv3.Value(one.key), "=", fingerprint), clientv3.Compare(clientv3.LeaseValue(one.key), "=", one.lease)}
			response, err := e.transact(ctx, func(t clientv3.Txn) clientv3.Txn {
				return t.If(same...).Else(clientv3.OpPut(one.key, fingerprint, clientv3.WithLease(one.lease), clientv3.WithPrevKV()))
			})
			if err != nil {
				return over, fmt.Errorf("write by what this director is known: %w", err)
			}
			if !response.Succeeded {
				if before := response.Responses[0].GetResponsePut().GetPrevKv(); before != nil && string(before.Value) != fingerprint {
					over = a
				}
			}
		}
	}
	return over, nil
}

// lease is a lease of this process; the zero ID: none that is known to live.
type lease struct {
	seconds int64
	id      clientv3.LeaseID
}

// prolong prolongs a lease, or begins a new one.
func (e *Etcd) prolong(ctx context.Context, l *lease) error {
	client, err := e.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if l.id != clientv3.NoLease {
		_, err := client.KeepAliveOnce(ctx, l.id)
		if err == nil {
			return nil
		}
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return fmt.Errorf("say to etcd that this director lives: %w", err)
		}
		l.id = clientv3.NoLease // the lease has ended, or etcd has lost it
	}
	granted, err := client.Grant(ctx, l.seconds)
	if err != nil {
		return fmt.Errorf("say to etcd that this director lives: %w", err)
	}
	l.id = granted.ID
	return nil
}
