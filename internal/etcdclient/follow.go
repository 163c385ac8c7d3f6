package etcdclient

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// listAgain is how often keys are read while their watch says nothing: a network can lose a watch
// without either end noticing.
const listAgain = 30 * time.Second

// Task is something that a process does in etcd again and again.
type Task struct {
	Try  func(context.Context) error // once
	Rest func(context.Context)       // returns when it has to be done again, after it was done

	Consequence string // of its failure
	Kind        model.ProblemKind
	Part        string // of the problem that its failure is; empty: it is none
}

// Repeat does a task until the context ends. After a failure it pauses, longer and longer.
func (c *Client) Repeat(ctx context.Context, t Task) {
	pause, failed := retry.Backoff{First: firstPause, Last: lastPause}, false
	for ctx.Err() == nil {
		err := t.Try(ctx)
		if ctx.Err() != nil {
			return
		}
		if failed != (err != nil) && t.Part != "" {
			c.Problem(t.Kind, t.Part, t.Consequence, err)
		}
		if failed = err != nil; failed {
			c.Log.Debug(t.Consequence, "error", err)
			retry.Sleep(ctx, pause.Next())
			continue
		}
		pause.Reset()
		t.Rest(ctx)
	}
}

// Followed are keys that a process follows.
type Followed struct {
	Key    string
	Prefix bool // all keys that begin with Key, not it alone
	// List reads the keys and returns the revision of etcd up to which they are known.
	List func(context.Context) (revision int64, err error)
	// Take gets what was written after that revision, in order, and returns whether the keys have to be
	// listed again.
	Take  func([]*clientv3.Event) (again bool)
	Again <-chan struct{} // is sent to when the keys have to be listed again; nil: it never is

	Consequence string // as in Task
	Kind        model.ProblemKind
	Part        string
}

// Follow lists keys and then watches them, again and again, until the context ends. What was known
// stays while etcd cannot be reached.
func (c *Client) Follow(ctx context.Context, f Followed) {
	var known int64
	c.Repeat(ctx, Task{
		Try: func(ctx context.Context) (err error) {
			select {
			case <-f.Again: // it is done now
			default:
			}
			known, err = f.List(ctx)
			return err
		},
		Rest:        func(ctx context.Context) { c.watch(ctx, f, known) },
		Consequence: f.Consequence, Kind: f.Kind, Part: f.Part,
	})
}

// watch takes what is written after a revision. It returns when the keys have to be listed again.
func (c *Client) watch(ctx context.Context, f Followed, since int64) {
	client, err := c.Connect()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), listAgain)
	defer cancel()
	options := []clientv3.OpOption{clientv3.WithRev(since + 1)}
	if f.Prefix {
		options = append(options, clientv3.WithPrefix())
	}
	responses := client.Watch(ctx, f.Key, options...)
	for {
		select {
		case <-f.Again:
			return
		case response, open := <-responses:
			switch {
			case !open:
				return
			case response.Err() != nil:
				retry.Sleep(ctx, firstPause)
				return
			case len(response.Events) > 0 && f.Take(response.Events):
				return
			}
		}
	}
}
