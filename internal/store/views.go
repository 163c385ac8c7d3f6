package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/model"
)

// The results of each director's probes are beside the state, for the services whose shares depend
// on them:
//
//	PREFIX/views/LEASE/SERVICE
//
// The lease is that of the director's process: its results do not outlive it for long. Only
// directors may write there.

// How long a view lives without renewal, in seconds, how often it is renewed, and how often it is
// written at most: etcd keeps every version.
const (
	viewsLive  = 10
	renewViews = 3 * time.Second
	viewsPause = time.Second
)

// writesAtOnce is how many keys one transaction writes: etcd takes 128.
const writesAtOnce = 100

// Views are what the directors of a group have found, each with its own probes.
type Views struct {
	etcd   *Etcd
	prefix string
	told   chan struct{} // is sent to when there is something new to tell
	news   chan struct{} // is sent to when some director's view has changed

	lease   clientv3.LeaseID
	written map[string]string // the keys and values under the lease

	mu     sync.Mutex
	wanted map[string]string // texts by the names of services
	views  map[string]model.View
}

// FollowViews follows what directors find, and tells them this director's views, until the context
// ends.
func (e *Etcd) FollowViews(ctx context.Context) *Views {
	v := &Views{etcd: e, prefix: e.options.Prefix + "/views/", told: make(chan struct{}, 1), news: make(chan struct{}, 1), views: map[string]model.View{}}
	go v.tell(ctx)
	go func() {
		pause := firstPause
		for ctx.Err() == nil {
			at, err := v.list(ctx)
			if err != nil {
				e.options.Log.Debug("what other directors find cannot be read", "error", err)
				wait(ctx, pause)
				pause = min(2*pause, lastPause)
				continue
			}
			pause = firstPause
			v.watch(ctx, at)
		}
	}()
	return v
}

// Changed is sent to when what Views returns has changed.
func (v *Views) Changed() <-chan struct{} { return v.news }

// Views returns what each director has found about each service, in no order. This director's view
// is in it once it has come back from etcd: so all directors count the same.
func (v *Views) Views() []model.View {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Collect(maps.Values(v.views))
}

// Tell replaces this director's views. They are written later, and at most once a second.
func (v *Views) Tell(views []model.View) {
	wanted := make(map[string]string, len(views))
	for i := range views {
		id := &views[i].ServiceID
		text, err := json.Marshal(&views[i])
		if err != nil {
			v.etcd.options.Log.Error("what is found of a service cannot be written", "vip", id.VIP, "error", err)
			continue
		}
		wanted[fmt.Sprintf("%v,%v,%v,%v", id.Segment, id.VIP, id.Protocol, id.Port)] = string(text)
	}
	v.mu.Lock()
	same := maps.Equal(v.wanted, wanted)
	v.wanted = wanted
	v.mu.Unlock()
	if !same {
		signal(v.told)
	}
}

// tell writes this director's views, and renews the lease that they live by.
func (v *Views) tell(ctx context.Context) {
	pause, failed := firstPause, false
	for ctx.Err() == nil {
		if err := v.write(ctx); err != nil {
			if !failed && ctx.Err() == nil {
				v.etcd.options.Log.Warn("other directors do not learn what health checks find here", "error", err)
				v.etcd.options.warn(model.ProblemGroup, partViews, "other directors do not learn what health checks find here", err)
			}
			failed = true
			wait(ctx, pause)
			pause = min(2*pause, lastPause)
			continue
		}
		if failed {
			v.etcd.options.warn(model.ProblemGroup, partViews, "", nil)
		}
		pause, failed = firstPause, false
		wait(ctx, viewsPause)
		select {
		case <-v.told:
		case <-time.After(renewViews - viewsPause):
		case <-ctx.Done():
		}
	}
}

func (v *Views) write(ctx context.Context) error {
	v.mu.Lock()
	wanted := v.wanted
	v.mu.Unlock()
	if len(wanted) == 0 && len(v.written) == 0 {
		return nil // and no lease is needed
	}
	if err := v.renew(ctx); err != nil {
		return err
	}
	for some := range slices.Chunk(v.changes(wanted), writesAtOnce) {
		if _, err := v.etcd.commit(ctx, nil, some...); err != nil {
			return fmt.Errorf("write what health checks find: %w", err)
		}
	}
	v.written = wanted
	return nil
}

// changes returns the operations that turn the written keys into the wanted ones. Until they are
// done it is unknown what is written.
func (v *Views) changes(wanted map[string]string) (ops []clientv3.Op) {
	own, perhaps := fmt.Sprintf("%s%016x/", v.prefix, v.lease), map[string]string{}
	for name, text := range wanted {
		if before, is := v.written[name]; !is || before != text {
			ops = append(ops, clientv3.OpPut(own+name, text, clientv3.WithLease(v.lease)))
			text = ""
		}
		perhaps[name] = text
	}
	for name := range v.written {
		if _, stays := wanted[name]; !stays {
			ops = append(ops, clientv3.OpDelete(own+name))
			perhaps[name] = ""
		}
	}
	v.written = perhaps
	return ops
}

// renew prolongs the lease, or begins one under which nothing is written yet.
func (v *Views) renew(ctx context.Context) error {
	client, err := v.etcd.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if v.lease != clientv3.NoLease {
		_, err := client.KeepAliveOnce(ctx, v.lease)
		if err == nil {
			return nil
		}
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return fmt.Errorf("ask etcd to keep what health checks find: %w", err)
		}
	}
	v.lease, v.written = clientv3.NoLease, nil
	granted, err := client.Grant(ctx, viewsLive)
	if err != nil {
		return fmt.Errorf("ask etcd for a lease: %w", err)
	}
	v.lease = granted.ID
	return nil
}

func (v *Views) list(ctx context.Context) (revision int64, err error) {
	response, err := v.etcd.commit(ctx, nil, clientv3.OpGet(v.prefix, clientv3.WithPrefix()))
	if err != nil {
		return 0, err
	}
	views := map[string]model.View{}
	for _, kv := range response.Responses[0].GetResponseRange().Kvs {
		readView(views, string(kv.Key), kv.Value)
	}
	v.mu.Lock()
	v.views = views
	v.mu.Unlock()
	signal(v.news)
	return response.Header.Revision, nil
}

// readView adds a view. A view that cannot be read, perhaps of another version, does not count.
func readView(views map[string]model.View, key string, text []byte) {
	var view model.View
	if err := json.Unmarshal(text, &view); err != nil {
		delete(views, key)
		return
	}
	views[key] = view
}

// watch takes what directors write after a revision of etcd. It returns when it cannot go on, and
// from time to time: a network can lose a watch without either end noticing.
func (v *Views) watch(ctx context.Context, since int64) {
	client, err := v.etcd.connect()
	if err != nil {
		wait(ctx, firstPause)
		return
	}
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), lookAgain)
	defer cancel()
	for response := range client.Watch(ctx, v.prefix, clientv3.WithPrefix(), clientv3.WithRev(since+1)) {
		if response.Err() != nil {
			wait(ctx, firstPause)
			return
		}
		v.mu.Lock()
		for _, event := range response.Events {
			if event.Type == clientv3.EventTypeDelete {
				delete(v.views, string(event.Kv.Key))
				continue
			}
			readView(v.views, string(event.Kv.Key), event.Kv.Value)
		}
		v.mu.Unlock()
		signal(v.news)
	}
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
