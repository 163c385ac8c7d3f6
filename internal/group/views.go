package group

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// How long a view lives without renewal, in seconds, how often it is renewed, and how often it is
// written at most: etcd keeps every version.
const (
	viewsLive  = 10
	renewViews = 3 * time.Second
	viewsPause = time.Second
)

// writesAtOnce is how many keys one transaction writes: etcd takes 128.
const writesAtOnce = 100

// Views are what the directors of a group have found, each with its own probes, for the services whose
// shares depend on them. A director's views live by its process's lease: they do not outlive it for
// long. Only directors may write there.
type Views struct {
	client   *etcdclient.Client
	prefix   string
	views    *etcdclient.Mirror[model.View]
	reported chan struct{} // is sent to when there is something new to tell
	news     chan struct{} // is sent to when some director's view has changed

	lease   *etcdclient.Lease
	under   clientv3.LeaseID  // that the following are written under
	written map[string]string // keys and values

	mu     sync.Mutex
	wanted map[string]string // texts by the names of services
}

// FollowViews follows what directors find, and tells them this director's views, until the context
// ends.
func (g *Group) FollowViews(ctx context.Context) *Views {
	v := &Views{client: g.client, prefix: g.client.Prefix + "/views/", lease: g.client.NewLease(viewsLive, "what health checks find"), reported: make(chan struct{}, 1), news: make(chan struct{}, 1)}
	v.views = etcdclient.NewMirror(g.client, v.prefix, readView, func() { signal(v.news) })
	go v.client.Repeat(ctx, etcdclient.Task{
		Try: v.write, Rest: v.rest,
		Consequence: "other directors do not learn what health checks find here", Kind: model.ProblemGroup, Part: partViews,
	})
	go v.views.Run(ctx, "what other directors find cannot be read")
	return v
}

func readView(_ string, text []byte) (view model.View, err error) {
	err = json.Unmarshal(text, &view)
	return view, err
}

// Changed is sent to when what Views returns has changed.
func (v *Views) Changed() <-chan struct{} { return v.news }

// Views returns what each director has found about each service, in no order. This director's view
// is in it once it has come back from etcd: so all directors count the same.
func (v *Views) Views() (all []model.View) {
	v.views.All(func(_ string, view model.View, _ clientv3.LeaseID) { all = append(all, view) })
	return all
}

// Report replaces this director's views. They are written later, and at most once a second.
func (v *Views) Report(views []model.View) {
	wanted := make(map[string]string, len(views))
	for i := range views {
		id := &views[i].ServiceID
		text, err := json.Marshal(&views[i])
		if err != nil {
			v.client.Log.Error("what is found of a service cannot be written", "vip", id.VIP, "error", err)
			continue
		}
		wanted[fmt.Sprintf("%v,%v,%v,%v", id.Segment, id.VIP, id.Protocol, id.Port)] = string(text)
	}
	v.mu.Lock()
	same := maps.Equal(v.wanted, wanted)
	v.wanted = wanted
	v.mu.Unlock()
	if !same {
		signal(v.reported)
	}
}

// rest waits until there is something new to tell, or the lease has to be renewed.
func (v *Views) rest(ctx context.Context) {
	retry.Sleep(ctx, viewsPause)
	select {
	case <-v.reported:
	case <-time.After(renewViews - viewsPause):
	case <-ctx.Done():
	}
}

// write writes this director's views, and renews the lease that they live by.
func (v *Views) write(ctx context.Context) error {
	v.mu.Lock()
	wanted := v.wanted
	v.mu.Unlock()
	if len(wanted) == 0 && len(v.written) == 0 {
		return nil // and no lease is needed
	}
	return v.lease.Use(ctx, func(lease clientv3.LeaseID) error {
		if lease != v.under {
			v.under, v.written = lease, nil
		}
		for some := range slices.Chunk(v.changes(wanted), writesAtOnce) {
			if _, err := v.client.Commit(ctx, nil, some...); err != nil {
				return fmt.Errorf("write what health checks find: %w", err)
			}
		}
		v.written = wanted
		return nil
	})
}

// changes returns the operations that turn the written keys into the wanted ones. Until they are
// done it is unknown what is written.
func (v *Views) changes(wanted map[string]string) (ops []clientv3.Op) {
	own, perhaps := fmt.Sprintf("%s%016x/", v.prefix, v.under), map[string]string{}
	for name, text := range wanted {
		if before, is := v.written[name]; !is || before != text {
			ops = append(ops, clientv3.OpPut(own+name, text, clientv3.WithLease(v.under)))
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
