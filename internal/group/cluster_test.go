package group

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
	"weir.io/weir/lab/etcdlab"
)

func TestMain(m *testing.M) { etcdlab.Isolated(m) }

const patience = 60 * time.Second

// cluster is a real etcd and how a director reaches it.
type cluster struct {
	*etcdlab.Cluster
	t       *testing.T
	options etcdclient.Options
}

func newCluster(t *testing.T, secure bool) *cluster {
	t.Helper()
	c := etcdlab.New(t, etcdlab.Options{Members: 1, Secure: secure, Password: secure})
	return &cluster{c, t, etcdclient.Options{
		Endpoints: c.Endpoints, Prefix: c.Prefix, CA: c.CA, Cert: c.Cert, Key: c.Key, Username: c.Username, Password: c.Password,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
}

// open returns a process's part in the group.
func (c *cluster) open() *Group { return c.openWith(c.options) }

// openAs returns that of a user.
func (c *cluster) openAs(user, password string) *Group {
	o := c.options
	o.Username, o.Password = user, password
	return c.openWith(o)
}

func (c *cluster) openWith(o etcdclient.Options) *Group {
	c.t.Helper()
	g, err := Open(o, "")
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { g.Close() })
	return g
}

// put gives an owner one service.
func put(t *testing.T, g *Group, s model.Service) {
	t.Helper()
	if _, err := g.Update(t.Context(), store.Replace("cli", []model.Service{s}, func(log model.Log, _ model.Service) model.Log { return log })); err != nil {
		t.Fatal(err)
	}
}

var web = model.Service{
	Name: "web", Segment: model.Segment{Kind: model.SegmentVLAN, ID: 7}, VIP: netip.MustParseAddr("203.0.113.1"),
	Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 81}, Mode: model.NAT,
}

// A process whose token etcd does not know any more, as after a restart of etcd, gets another one:
// whatever it asks first, and what it follows goes on.
func TestEtcdForgetsTokens(t *testing.T) {
	c := newCluster(t, true)
	admin, err := c.openAs("root", "of-the-tests").client.Connect()
	if err != nil {
		t.Fatal(err)
	}
	reader, agent, watcher := c.open(), c.open(), c.open()
	states := watcher.Watch(t.Context())
	ask := func() {
		t.Helper()
		if _, err := reader.Read(t.Context()); err != nil {
			t.Error(err)
		}
		if err := agent.PutReports(t.Context(), []model.AgentReport{reportOf(1)}); err != nil {
			t.Error(err)
		}
	}
	follow := func(revision uint64) {
		t.Helper()
		for end := time.After(patience); ; {
			select {
			case s := <-states:
				if s.Revision == revision {
					return
				}
			case <-end:
				t.Fatalf("revision %d is not sent", revision)
			}
		}
	}
	follow(0)
	ask()
	// A new password, even the same, ends what the old one gave.
	if _, err := admin.UserChangePassword(t.Context(), c.Username, c.Password); err != nil {
		t.Fatal(err)
	}
	ask()
	put(t, reader, web)
	follow(1)
}
