package ovnlab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Cluster is a Southbound database alone that several servers share.
type Cluster struct {
	Endpoints []string // of the members

	*OVN
	members []*Daemon
}

// NewCluster starts a cluster, and waits until it has a leader.
func NewCluster(t testing.TB, members int) *Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "ovn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := loopbackUp(); err != nil {
		t.Fatal("bring the loopback up:", err)
	}
	c := &Cluster{OVN: &OVN{t: t, dir: dir, started: map[string]*Daemon{}}, members: make([]*Daemon, members)}
	first := ""
	for i := range members {
		own := fmt.Sprintf("tcp:127.0.0.1:%d", freePort(t))
		if i == 0 {
			first = own
			c.run("ovsdb-tool", "create-cluster", c.file(i), schemas+"ovn-sb.ovsschema", own)
		} else {
			c.run("ovsdb-tool", "join-cluster", c.file(i), "OVN_Southbound", own, first)
		}
		c.Endpoints = append(c.Endpoints, "unix:"+c.file(i)+".sock")
		c.Start(i)
	}
	return c
}

func (c *Cluster) file(i int) string { return filepath.Join(c.dir, fmt.Sprintf("m%d", i)) }

// Start starts a member, and waits until it has joined the cluster.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	c.members[i] = c.start(fmt.Sprintf("m%d", i), "ovsdb-server", c.file(i), "--remote=p"+c.Endpoints[i])
	c.wait("the member has joined", func() error {
		status, err := c.status(i)
		if err == nil && !strings.Contains(status, "\nLeader: ") || strings.Contains(status, "\nLeader: unknown") {
			err = fmt.Errorf("it knows no leader: %s", status)
		}
		return err
	})
}

// Kill ends a member as a power cut does.
func (c *Cluster) Kill(i int) { c.members[i].Kill() }

// Leader waits until one of the members that run leads, and returns it.
func (c *Cluster) Leader() (leader int) {
	c.t.Helper()
	c.wait("the cluster has a leader", func() error {
		for i := range c.members {
			if status, err := c.status(i); err == nil && strings.Contains(status, "\nRole: leader") {
				leader = i
				return nil
			}
		}
		return fmt.Errorf("none leads")
	})
	return leader
}

func (c *Cluster) status(i int) (string, error) {
	return c.try("ovs-appctl", "-t", c.file(i)+".ctl", "cluster/status", "OVN_Southbound")
}
