package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Etcd is the store of a group of directors, in the etcd that they share. Its keys:
//
//	PREFIX/root               names the segments of every set
//	PREFIX/segments/NAME/PART some documents, in parts that etcd takes
//	PREFIX/collected          is written when segments are deleted
//	PREFIX/evidence/ADDRESS   what an agent says about a backend's connections
//	PREFIX/directors/ADDRESS  by what certificate a director is known to the others
//	PREFIX/directors/ADDRESS/runs  what it says about itself
//	PREFIX/views/...          what directors' probes have found
//	PREFIX/neighbor/...       which director answers for which VIP, where there is no router
//
// A change writes the segments that are new and then switches the root in one transaction, which
// succeeds only if no other director has switched it or deleted segments since the change began.
type Etcd struct {
	options EtcdOptions

	connecting sync.Mutex
	client     *clientv3.Client
	closed     bool

	mu       sync.Mutex
	segments map[string]segment // of the root that was last read
	swept    bool               // the remains of interrupted changes are collected
	left     map[string]bool    // segments that this process has left and that are not collected yet
	lease    clientv3.LeaseID   // by which this process's reports live
	sent     snapshot           // last, to the follower

	cache *cache // nil: none; only Cached and Ran use it
}

// OpenEtcd returns the store in an etcd, which need not be reachable yet. The files with
// certificates and the password need not exist yet, either: they are read when needed, again after
// each error.
func OpenEtcd(o EtcdOptions) (*Etcd, error) {
	if len(o.Endpoints) == 0 {
		return nil, errors.New("etcd has no endpoints")
	}
	if err := o.halfPair(); err != nil {
		return nil, err
	}
	e := &Etcd{options: o, segments: map[string]segment{}}
	if o.Cache != "" {
		e.cache = &cache{dir: o.Cache}
	}
	return e, nil
}

// Cached returns the last state that has run here, as an earlier process told Ran, if it is on this
// disk. It is called before Watch, even if its result is not used: the segments that it reads are
// not read from etcd again.
func (e *Etcd) Cached() (s State, found bool, err error) {
	if e.cache == nil {
		return State{}, false, nil
	}
	r, segments, found, err := e.cache.load(e.options.Prefix)
	if err != nil || !found {
		return State{}, false, err
	}
	e.mu.Lock()
	e.segments = segments
	e.mu.Unlock()
	s, err = r.state(segments)
	return s, err == nil, err
}

// Ran puts the state of a revision, which Watch sent last, on the disk, because it runs. A state
// that contradicts the director's file is not put there, so that a start has something to go on
// with. The director forwards by the state even if it cannot be written. A store that has lost
// everything does not delete what is known here. Ran is not for concurrent use.
func (e *Etcd) Ran(revision uint64) error {
	e.mu.Lock()
	s := e.sent
	e.mu.Unlock()
	if e.cache == nil || revision == 0 || s.Revision != revision {
		return nil
	}
	if err := e.cache.save(e.options.Prefix, s.root, s.segments); err != nil {
		return fmt.Errorf("a start without etcd would not know the group's state: %w", err)
	}
	return nil
}
func (e *Etcd) rootKey() string      { return e.options.Prefix + "/root" }
func (e *Etcd) collectedKey() string { return e.options.Prefix + "/collected" }
func (e *Etcd) segmentsKey() string  { return e.options.Prefix + "/segments/" }

// parts returns the prefix of the keys of a segment's parts.
func (e *Etcd) parts(name string) string { return e.segmentsKey() + name + "/" }

// snapshot is the state at one moment of etcd.
type snapshot struct {
	State
	root      root
	segments  map[string]segment
	at        int64 // etcd's revision at that moment
	switched  int64 // when the root was last written, 0: never
	collected int64 // when segments were last deleted
}

// Read returns the state.
func (e *Etcd) Read(ctx context.Context) (State, error) {
	s, err := e.read(ctx)
	return s.State, err
}

func (e *Etcd) read(ctx context.Context) (snapshot, error) {
	for {
		s, err := e.tryRead(ctx)
		// etcd has compacted the root's revision: there is a later one.
		if !errors.Is(err, rpctypes.ErrCompacted) || ctx.Err() != nil {
			return s, err
		}
	}
}

func (e *Etcd) tryRead(ctx context.Context) (snapshot, error) {
	var s snapshot
	response, err := e.commit(ctx, nil, clientv3.OpGet(e.rootKey()), clientv3.OpGet(e.collectedKey()))
	if err != nil {
		return s, err
	}
	s.at = response.Header.Revision
	var text []byte
	for _, kv := range response.Responses[0].GetResponseRange().Kvs {
		text, s.switched = kv.Value, kv.ModRevision
	}
	for _, kv := range response.Responses[1].GetResponseRange().Kvs {
		s.collected = kv.ModRevision
	}
	if s.root, err = readRoot(text); err != nil {
		return s, err
	}
	if s.segments, err = e.fetch(ctx, s.root, s.at); err != nil {
		return s, err
	}
	s.State, err = s.root.state(s.segments)
	return s, err
}

// fetchAtOnce bounds the segments in one answer: each may have cutLength bytes and more.
const fetchAtOnce = 32

// fetch returns the segments of a root, as they were at a revision of etcd: a segment
// that is deleted meanwhile is still there.
func (e *Etcd) fetch(ctx context.Context, r root, revision int64) (map[string]segment, error) {
	e.mu.Lock()
	known := e.segments
	e.mu.Unlock()
	segments := map[string]segment{}
	var missing []string
	texts, documents := 0, 0
	for name := range r.names() {
		if s, has := known[name]; has {
			segments[name] = s
			texts, documents = texts+len(s.text), documents+s.size
		} else {
			missing = append(missing, name)
		}
	}
	for len(missing) > 0 {
		names := missing[:min(fetchAtOnce, len(missing))]
		missing = missing[len(names):]
		var gets []clientv3.Op
		for _, name := range names {
			gets = append(gets, clientv3.OpGet(e.parts(name), clientv3.WithPrefix(), clientv3.WithRev(revision)))
		}
		response, err := e.commit(ctx, nil, gets...)
		if err != nil {
			return nil, err
		}
		for i, name := range names {
			var text bytes.Buffer
			for _, kv := range response.Responses[i].GetResponseRange().Kvs {
				text.Write(kv.Value)
			}
			if texts += text.Len(); texts > mostState {
				return nil, fmt.Errorf("read the state in etcd: its sets have more than %d bytes", mostState)
			}
			if segments[name], err = newSegment(name, text.Bytes()); err != nil {
				return nil, fmt.Errorf("read the state in etcd: %w", err)
			}
			if documents += segments[name].size; documents > mostDocuments {
				return nil, fmt.Errorf("read the state in etcd: its documents take more than %d bytes", mostDocuments)
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.segments = segments
	return segments, nil
}

// Update makes the change and returns the state that it led to. A change that changes nothing has
// no revision of its own. After an error that is not the change's own, the change may still have
// been made: etcd's answer can be lost.
func (e *Etcd) Update(ctx context.Context, change Change) (State, error) {
	for {
		from, err := e.read(ctx)
		if err != nil {
			return State{}, err
		}
		next, err := change(from.State)
		if err != nil {
			return State{}, err
		}
		owners := changed(from.State, next)
		if len(owners) == 0 {
			return from.State, nil
		}
		to, fresh, err := from.root.follow(next, owners)
		if err != nil {
			return State{}, err
		}
		if err := e.upload(ctx, fresh); err != nil {
			return State{}, err
		}
		done, switched, err := e.switchRoot(ctx, from, to)
		if errors.Is(err, ErrUnreachable) {
			return State{}, fmt.Errorf("it may be stored all the same: %w", err)
		}
		if err != nil {
			return State{}, err
		}
		if !done {
			e.leave(namesOf(fresh)) // another writer may have deleted them already, and does so no more
			continue
		}
		e.collect(ctx, from.root, to, switched)
		next.Revision = to.Revision
		return next, nil
	}
}

// switchRoot makes a root the current one, if the snapshot is still current.
func (e *Etcd) switchRoot(ctx context.Context, from snapshot, to root) (done bool, switched int64, err error) {
	text, err := json.Marshal(to)
	if err != nil {
		return false, 0, fmt.Errorf("encode the root: %w", err)
	}
	unchanged := []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(e.rootKey()), "=", from.switched),
		clientv3.Compare(clientv3.ModRevision(e.collectedKey()), "=", from.collected),
	}
	response, err := e.commit(ctx, unchanged, clientv3.OpPut(e.rootKey(), string(text)))
	if err != nil {
		return false, 0, err
	}
	return response.Succeeded, response.Header.Revision, nil
}
