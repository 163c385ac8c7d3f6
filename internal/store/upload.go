package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

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
		_, err := e.commit(ctx, nil, puts...)
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
	e.options.Log.Debug("etcd keeps segments that nothing needs", "error", err)
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
	response, err := e.commit(ctx, nil, clientv3.OpGet(e.rootKey()))
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
		response, err := e.commit(ctx, []clientv3.Cmp{still}, operations...)
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
	response, err := e.commit(ctx, nil, clientv3.OpGet(e.segmentsKey(), clientv3.WithPrefix(), clientv3.WithKeysOnly()))
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
