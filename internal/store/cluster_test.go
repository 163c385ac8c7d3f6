package store

import (
	"context"
	"log/slog"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/lab/etcdlab"
)

const patience = 60 * time.Second

// cluster is a real etcd and how a director reaches it.
type cluster struct {
	*etcdlab.Cluster
	t       *testing.T
	options etcdclient.Options
}

func newCluster(t *testing.T, members int, secure bool) *cluster {
	t.Helper()
	c := etcdlab.New(t, etcdlab.Options{Members: members, Secure: secure, Password: secure})
	return &cluster{c, t, etcdclient.Options{
		Endpoints: c.Endpoints, Prefix: c.Prefix, CA: c.CA, Cert: c.Cert, Key: c.Key, Username: c.Username, Password: c.Password,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
}

func (c *cluster) start(i int) { c.Start(i) }
func (c *cluster) kill(i int)  { c.Kill(i) }

// open returns a director's store.
func (c *cluster) open() *Etcd { return c.openWith(c.options, "") }

func (c *cluster) openWith(o etcdclient.Options, cache string) *Etcd {
	c.t.Helper()
	client, err := etcdclient.New(o)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { client.Close() })
	return NewEtcd(client, cache)
}

// client returns a connection for what a store does not do.
func (c *cluster) client() *clientv3.Client { return c.Client() }

// next returns the first state that a watch sends and that is wanted.
func next(t *testing.T, states <-chan State, wanted func(State) bool) State {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		select {
		case s := <-states:
			if wanted(s) {
				return s
			}
		case <-ctx.Done():
			t.Fatal("the watch does not send the state that is wanted")
		}
	}
}
