package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/model"
)

// Etcd is the store of a group of directors, in the etcd that they share. Its keys:
//
//	PREFIX/root               names the segments of every set
//	PREFIX/segments/NAME/PART some documents, in parts that etcd takes
//	PREFIX/collected          is written when segments are deleted
//
// A change writes the segments that are new and then switches the root in one transaction, which
// succeeds only if no other director has switched it or deleted segments since the change began.
type Etcd struct {
	client *etcdclient.Client

	mu       sync.Mutex
	segments map[string]segment // of the root that was last read
	swept    bool               // the remains of interrupted changes are collected
	left     map[string]bool    // segments that this process has left and that are not collected yet
	sent     snapshot           // last, to the follower

	cache *cache // nil: none; only Cached and Ran use it
}

// NewEtcd returns the store in an etcd, which need not be reachable yet. dir has the last known state;
// empty: none is kept.
func NewEtcd(client *etcdclient.Client, dir string) *Etcd {
	e := &Etcd{client: client, segments: map[string]segment{}}
	if dir != "" {
		e.cache = &cache{dir: dir}
	}
	return e
}

// Cached returns the last state that has run here, as an earlier process told Ran, if it is on this
// disk. It is called before Watch, even if its result is not used: the segments that it reads are
// not read from etcd again.
func (e *Etcd) Cached() (s State, found bool, err error) {
	if e.cache == nil {
		return State{}, false, nil
	}
	r, segments, found, err := e.cache.load(e.client.Prefix)
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
	if err := e.cache.save(e.client.Prefix, s.root, s.segments); err != nil {
		return fmt.Errorf("a start without etcd would not know the group's state: %w", err)
	}
	return nil
}

func (e *Etcd) rootKey() string      { return e.client.Prefix + "/root" }
func (e *Etcd) collectedKey() string { return e.client.Prefix + "/collected" }
func (e *Etcd) segmentsKey() string  { return e.client.Prefix + "/segments/" }

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
	response, err := e.client.Commit(ctx, nil, clientv3.OpGet(e.rootKey()), clientv3.OpGet(e.collectedKey()))
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
		response, err := e.client.Commit(ctx, nil, gets...)
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

// The parts of the shared data whose problems are told here.
const (
	partEtcd         = "etcd" // the state
	partCertificates = "etcd's certificates"
)

// Watch sends the state as soon as it can be read, and then every later one, except those that were
// replaced before they were taken. While etcd cannot be reached nothing is sent. It ends with the
// context.
func (e *Etcd) Watch(ctx context.Context) <-chan State {
	states := make(chan State, 1)
	var last int64 = -1 // the root that was sent
	list := func(ctx context.Context) (revision int64, err error) {
		s, err := e.read(ctx)
		if err != nil {
			return 0, err
		}
		e.client.Problem(model.ProblemGroup, partCertificates, "the next connection to etcd fails", e.client.Outdated(time.Now()))
		if s.switched != last {
			e.mu.Lock()
			e.sent = s
			e.mu.Unlock()
			replace(states, s.State)
			last = s.switched
		}
		return s.at, nil
	}
	go func() {
		defer close(states)
		e.client.Follow(ctx, etcdclient.Followed{
			Key: e.rootKey(), List: list, Take: func([]*clientv3.Event) (again bool) { return true },
			Consequence: "etcd cannot be read, what runs goes on", Kind: model.ProblemGroup, Part: partEtcd,
		})
	}()
	return states
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
		if errors.Is(err, etcdclient.ErrUnreachable) {
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
	response, err := e.client.Commit(ctx, unchanged, clientv3.OpPut(e.rootKey(), string(text)))
	if err != nil {
		return false, 0, err
	}
	return response.Succeeded, response.Header.Revision, nil
}

// Bounds well below etcd's defaults: requests of 1.5 MiB (--max-request-bytes) with 128 operations
// (--max-txn-ops).
const (
	partBytes    = 512 << 10
	requestBytes = 1 << 20
	requestOps   = 100
)

// upload writes segments. An existing segment is written again, which changes nothing: its name is
// a digest of its content.
func (e *Etcd) upload(ctx context.Context, segments []segment) error {
	var puts []clientv3.Op
	size := 0
	send := func() error {
		if len(puts) == 0 {
			return nil
		}
		_, err := e.client.Commit(ctx, nil, puts...)
		puts, size = nil, 0
		return err
	}
	for _, s := range segments {
		for part, text := 0, s.text; len(text) > 0; part++ {
			piece := text[:min(partBytes, len(text))]
			text = text[len(piece):]
			if size+len(piece) > requestBytes || len(puts) == requestOps {
				if err := send(); err != nil {
					return err
				}
			}
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("%s%04d", e.parts(s.name), part), string(piece)))
			size += len(piece)
		}
	}
	return send()
}

// collectAttempts bounds how often segments are deleted again because another writer has switched the
// root meanwhile.
const collectAttempts = 16

// collect deletes the segments that a change has left without a root, and those that earlier changes of
// this process have left; after the first change of this process also those of changes that were never
// finished. It deletes only what the current root does not name, and makes running changes begin again:
// they may rely on a deleted segment. Segments that it cannot delete wait for the next change.
func (e *Etcd) collect(ctx context.Context, from, to root, switched int64) {
	garbage, err := e.garbage(ctx, from)
	for attempt := 0; err == nil && attempt < collectAttempts; attempt++ {
		for name := range to.names() {
			delete(garbage, name)
		}
		var done bool
		if done, err = e.discard(ctx, garbage, switched); done {
			return
		}
		if err == nil {
			to, switched, err = e.current(ctx)
		}
	}
	e.leave(garbage)
	e.client.Log.Debug("etcd keeps segments that nothing needs", "error", err)
}

// leave remembers segments that the next change collects.
func (e *Etcd) leave(names map[string]bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.left == nil {
		e.left = map[string]bool{}
	}
	maps.Copy(e.left, names)
}

// garbage returns the segments that may be without a root after the change of one.
func (e *Etcd) garbage(ctx context.Context, from root) (map[string]bool, error) {
	garbage := from.names()
	e.mu.Lock()
	sweep := !e.swept
	maps.Copy(garbage, e.left)
	e.left = nil
	e.mu.Unlock()
	if !sweep {
		return garbage, nil
	}
	all, err := e.list(ctx)
	if err != nil {
		return garbage, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.swept = true
	return all, nil
}

// current returns the root, and when it was written.
func (e *Etcd) current(ctx context.Context) (r root, switched int64, err error) {
	response, err := e.client.Commit(ctx, nil, clientv3.OpGet(e.rootKey()))
	if err != nil {
		return r, 0, err
	}
	var text []byte
	for _, kv := range response.Responses[0].GetResponseRange().Kvs {
		text, switched = kv.Value, kv.ModRevision
	}
	r, err = readRoot(text)
	return r, switched, err
}

// discard deletes segments, as long as the root is the one that was written then.
func (e *Etcd) discard(ctx context.Context, segments map[string]bool, switched int64) (done bool, err error) {
	names := slices.Collect(maps.Keys(segments))
	for len(names) > 0 {
		some := names[:min(requestOps-1, len(names))]
		names = names[len(some):]
		operations := []clientv3.Op{clientv3.OpPut(e.collectedKey(), "")}
		for _, name := range some {
			operations = append(operations, clientv3.OpDelete(e.parts(name), clientv3.WithPrefix()))
		}
		still := clientv3.Compare(clientv3.ModRevision(e.rootKey()), "=", switched)
		response, err := e.client.Commit(ctx, []clientv3.Cmp{still}, operations...)
		if err != nil || !response.Succeeded {
			return false, err
		}
	}
	return true, nil
}

func namesOf(segments []segment) map[string]bool {
	names := map[string]bool{}
	for _, s := range segments {
		names[s.name] = true
	}
	return names
}

// list returns the names of all segments in etcd.
func (e *Etcd) list(ctx context.Context) (map[string]bool, error) {
	response, err := e.client.Commit(ctx, nil, clientv3.OpGet(e.segmentsKey(), clientv3.WithPrefix(), clientv3.WithKeysOnly()))
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, kv := range response.Responses[0].GetResponseRange().Kvs {
		name, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), e.segmentsKey()), "/")
		names[name] = true
	}
	return names, nil
}
