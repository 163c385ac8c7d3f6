package store

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/model"
)

// Keys below the prefix.
const (
	membersKey = "members/"
	ownersOf   = "owners/"
)

// ownersMember is what a director writes about itself.
type ownersMember struct {
	Process string       `json:"process"`
	VIPs    []netip.Addr `json:"vips"`
}

// ownersKey is the last known state of a key.
type ownersKey struct {
	revision int64 // etcd's revision when it was written or deleted
	lease    clientv3.LeaseID
	gone     bool
	member   ownersMember // of a member's key
	director netip.Addr   // of an owner's key
}

// ownersView is what is known about the keys: from watching them, and from the answers to this
// director's own transactions, whichever is newer. Its methods are called with the mutex held.
type ownersView struct {
	prefix  string
	known   bool
	keys    map[string]ownersKey
	notify  func()
	changed bool
	latest  model.NeighborGroup
}

func (v *ownersView) change() {
	v.changed = true
	v.notify()
}

func (v *ownersView) set(key string, k ownersKey) {
	if before, has := v.keys[key]; has && before.revision > k.revision {
		return
	}
	v.keys[key] = k
	v.change()
}

// put notes that a key was written. One that cannot be read, of another version, counts as missing.
func (v *ownersView) put(key string, value []byte, revision int64, lease clientv3.LeaseID) {
	k := ownersKey{revision: revision, lease: lease}
	if name := strings.TrimPrefix(key, v.prefix); strings.HasPrefix(name, membersKey) {
		k.gone = json.Unmarshal(value, &k.member) != nil
	} else {
		var err error
		k.director, err = netip.ParseAddr(string(value))
		k.gone = err != nil
	}
	v.set(key, k)
}

func (v *ownersView) delete(key string, revision int64) {
	v.set(key, ownersKey{revision: revision, gone: true})
}

// moved notes the result of an attempt to own a VIP, or to give it up.
func (v *ownersView) moved(key, self string, lease clientv3.LeaseID, revision int64, t *etcdserverpb.TxnResponse) {
	switch one := t.Responses[0]; {
	case one.GetResponsePut() != nil:
		v.put(key, []byte(self), revision, lease)
	case one.GetResponseDeleteRange() != nil || len(one.GetResponseRange().GetKvs()) == 0:
		v.delete(key, revision)
	default:
		kv := one.GetResponseRange().Kvs[0]
		v.put(key, kv.Value, kv.ModRevision, clientv3.LeaseID(kv.Lease))
	}
}

// listed takes all keys as they were at a revision.
func (v *ownersView) listed(response *clientv3.GetResponse) {
	there := make(map[string]bool, len(response.Kvs))
	for _, kv := range response.Kvs {
		there[string(kv.Key)] = true
		v.put(string(kv.Key), kv.Value, kv.ModRevision, clientv3.LeaseID(kv.Lease))
	}
	for key, k := range v.keys {
		if !there[key] && k.revision <= response.Header.Revision {
			delete(v.keys, key)
		}
	}
	v.known = true
	v.change()
}

// replaced reports whether another process has written what this director offers.
func (v *ownersView) replaced(self netip.Addr, process string) bool {
	k, has := v.keys[v.prefix+membersKey+self.String()]
	return has && !k.gone && k.member.Process != process
}

// group returns what the keys mean for a process that has a lease.
func (v *ownersView) group(self netip.Addr, process string, lease clientv3.LeaseID) model.NeighborGroup {
	if !v.changed {
		return v.latest
	}
	v.changed = false
	g := model.NeighborGroup{Known: v.known, Members: map[netip.Addr][]netip.Addr{}, Owners: map[netip.Addr]model.NeighborOwner{}}
	mine := func(k *ownersKey) bool { return lease != clientv3.NoLease && k.lease == lease }
	for key, k := range v.keys {
		if k.gone {
			continue
		}
		kind, name, _ := strings.Cut(strings.TrimPrefix(key, v.prefix), "/")
		a, err := netip.ParseAddr(name)
		switch {
		case err != nil:
		case kind+"/" == membersKey:
			g.Members[a] = k.member.VIPs
			g.Joined = g.Joined || a == self && mine(&k) && k.member.Process == process
		case kind+"/" == ownersOf:
			g.Owners[a] = model.NeighborOwner{Director: k.director, Mine: mine(&k)}
		}
	}
	if v.replaced(self, process) { // the other process answers
		for vip, owner := range g.Owners {
			owner.Mine = false
			g.Owners[vip] = owner
		}
	}
	v.latest = g
	return g
}

// follow keeps the view up to date with the keys, until the context ends. What was known stays
// while etcd cannot be reached.
func (o *Owners) follow(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		client, err := o.etcd.connect()
		var response *clientv3.GetResponse
		if err == nil {
			listing, cancel := context.WithTimeout(ctx, requestTimeout)
			response, err = client.Get(listing, o.view.prefix, clientv3.WithPrefix())
			cancel()
		}
		if err != nil {
			o.etcd.options.Log.Debug("who answers for which VIP cannot be read", "error", err)
			wait(ctx, pause)
			pause = min(2*pause, lastPause)
			continue
		}
		pause = firstPause
		o.mu.Lock()
		o.view.listed(response)
		o.mu.Unlock()
		o.watch(ctx, client, response.Header.Revision)
	}
}

// watch takes what is written after a revision. It returns when it cannot go on, and from time to
// time: a network can lose a watch without either end noticing.
func (o *Owners) watch(ctx context.Context, client *clientv3.Client, since int64) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), lookAgain)
	defer cancel()
	for response := range client.Watch(ctx, o.view.prefix, clientv3.WithPrefix(), clientv3.WithRev(since+1)) {
		if response.Err() != nil {
			wait(ctx, firstPause)
			return
		}
		o.mu.Lock()
		for _, event := range response.Events {
			key := string(event.Kv.Key)
			if event.Type == clientv3.EventTypeDelete {
				o.view.delete(key, event.Kv.ModRevision)
			} else {
				o.view.put(key, event.Kv.Value, event.Kv.ModRevision, clientv3.LeaseID(event.Kv.Lease))
			}
		}
		o.mu.Unlock()
	}
}
