package store

import (
	"context"
	"log/slog"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weir.io/weir/lab/etcdlab"
)

const patience = 60 * time.Second

// cluster is a real etcd and how a director reaches it.
type cluster struct {
	*etcdlab.Cluster
	t       *testing.T
	options EtcdOptions
}

func newCluster(t *testing.T, members int, secure bool) *cluster {
	t.Helper()
	c := etcdlab.New(t, etcdlab.Options{Members: members, Secure: secure, Password: secure})
	return &cluster{c, t, EtcdOptions{
		Endpoints: c.Endpoints, Prefix: c.Prefix, CA: c.CA, Cert: c.Cert, Key: c.Key, Username: c.Username, Password: c.Password,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
}

func (c *cluster) start(i int) { c.Start(i) }
func (c *cluster) kill(i int)  { c.Kill(i) }

// open returns a director's store.
func (c *cluster) open() *Etcd {
	c.t.Helper()
	e, err := OpenEtcd(c.options)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { e.Close() })
	return e
}

// client returns a connection for what a store does not do.
func (c *cluster) client() *clientv3.Client { return c.Client() }

func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("never: %s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond) // between two looks
	}
}

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
