package store

import (
	"context"
	"fmt"
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

// collect deletes the segments that a change has left without a root; after the first change of
// this process also those of changes that were never finished. It succeeds only while the root is
// the one that was switched to, and makes running changes begin again: they may rely on a deleted
// segment. Segments that it cannot delete wait for the next process.
func (e *Etcd) collect(ctx context.Context, from, to root, switched int64) {
	garbage := from.names()
	e.mu.Lock()
	sweep := !e.swept
	e.swept = true
	e.mu.Unlock()
	if sweep {
		all, err := e.list(ctx)
		if err != nil {
			e.options.Log.Debug("etcd keeps segments that nothing needs", "error", err)
			return
		}
		garbage = all
	}
	for name := range to.names() {
		delete(garbage, name)
	}
	var names []string
	for name := range garbage {
		names = append(names, name)
	}
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
			e.mu.Lock()
			e.swept = false
			e.mu.Unlock()
			e.options.Log.Debug("etcd keeps segments that nothing needs", "error", err)
			return
		}
	}
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
