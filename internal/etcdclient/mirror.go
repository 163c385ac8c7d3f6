package etcdclient

import (
	"context"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Mirror is a copy of the keys that begin with a prefix. It is brought up to date by Run, and by the
// answers to what this process writes itself, whichever is newer.
type Mirror[V any] struct {
	client  *Client
	prefix  string
	decode  func(name string, value []byte) (V, error)
	changed func()

	mu      sync.Mutex
	listed  bool
	entries map[string]entry[V]
}

type entry[V any] struct {
	value    V
	lease    clientv3.LeaseID
	revision int64 // etcd's when it was written or deleted
	gone     bool
}

// NewMirror returns an empty mirror. decode reads the value of the key whose name follows the prefix; a
// value that it cannot read, perhaps of another version of weir, does not count. changed is called
// after changes.
func NewMirror[V any](c *Client, prefix string, decode func(name string, value []byte) (V, error), changed func()) *Mirror[V] {
	return &Mirror[V]{client: c, prefix: prefix, decode: decode, changed: changed, entries: map[string]entry[V]{}}
}

// Run follows the keys until the context ends. consequence is what follows if they cannot be read.
func (m *Mirror[V]) Run(ctx context.Context, consequence string) {
	m.client.Follow(ctx, Followed{Key: m.prefix, Prefix: true, List: m.list, Take: m.take, Consequence: consequence})
}

func (m *Mirror[V]) list(ctx context.Context) (revision int64, err error) {
	response, err := m.client.Commit(ctx, nil, clientv3.OpGet(m.prefix, clientv3.WithPrefix()))
	if err != nil {
		return 0, err
	}
	m.mu.Lock()
	before := m.entries
	m.entries, m.listed = map[string]entry[V]{}, true
	for _, kv := range response.Responses[0].GetResponseRange().Kvs {
		m.set(string(kv.Key), kv.Value, clientv3.LeaseID(kv.Lease), kv.ModRevision)
	}
	for name, e := range before {
		if e.revision > response.Header.Revision { // this process has written it since
			m.entries[name] = e
		}
	}
	m.mu.Unlock()
	m.changed()
	return response.Header.Revision, nil
}

func (m *Mirror[V]) take(events []*clientv3.Event) (again bool) {
	m.mu.Lock()
	for _, event := range events {
		if event.Type == clientv3.EventTypeDelete {
			m.put(string(event.Kv.Key), entry[V]{revision: event.Kv.ModRevision, gone: true})
		} else {
			m.set(string(event.Kv.Key), event.Kv.Value, clientv3.LeaseID(event.Kv.Lease), event.Kv.ModRevision)
		}
	}
	m.mu.Unlock()
	m.changed()
	return false
}

// set notes that a key was written. The lock is held.
func (m *Mirror[V]) set(key string, value []byte, lease clientv3.LeaseID, revision int64) {
	v, err := m.decode(strings.TrimPrefix(key, m.prefix), value)
	m.put(key, entry[V]{value: v, lease: lease, revision: revision, gone: err != nil})
}

func (m *Mirror[V]) put(key string, e entry[V]) {
	name := strings.TrimPrefix(key, m.prefix)
	if m.entries[name].revision <= e.revision {
		m.entries[name] = e
	}
}

// Wrote notes what this process has written by a transaction, or has learned from its answer.
func (m *Mirror[V]) Wrote(key string, value []byte, lease clientv3.LeaseID, revision int64) {
	m.mu.Lock()
	m.set(key, value, lease, revision)
	m.mu.Unlock()
	m.changed()
}

// Gone is Wrote for a key that there is not.
func (m *Mirror[V]) Gone(key string, revision int64) {
	m.mu.Lock()
	m.put(key, entry[V]{revision: revision, gone: true})
	m.mu.Unlock()
	m.changed()
}

// Listed reports whether it is known which keys there are.
func (m *Mirror[V]) Listed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.listed
}

// Get returns the value of the key whose name follows the prefix, if there is one.
func (m *Mirror[V]) Get(name string) (value V, is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, has := m.entries[name]
	return e.value, has && !e.gone
}

// All calls take with all values, the names that follow the prefix, and the leases that they live by.
func (m *Mirror[V]) All(take func(name string, value V, lease clientv3.LeaseID)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, e := range m.entries {
		if !e.gone {
			take(name, e.value, e.lease)
		}
	}
}
