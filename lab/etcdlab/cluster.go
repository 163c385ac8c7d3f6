// Package etcdlab runs a real etcd for tests.
package etcdlab

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const patience = 60 * time.Second

// Cluster is an etcd whose members serve the loopback of the tests' network.
type Cluster struct {
	Endpoints          []string
	Prefix             string // that the user may use
	CA, Cert, Key      string // files, of a secure one
	Username, Password string

	t       *testing.T
	on      func(func() error) error
	here    bool // members run here; elsewhere the lab ends the processes
	dir     string
	members []*member
}

type member struct {
	args []string
	cmd  *exec.Cmd
	log  bytes.Buffer
}

// Options are the differences between clusters.
type Options struct {
	Members  int
	Secure   bool   // members and clients want certificates
	Password bool   // and clients a password, too
	Address  string // that the members listen at; empty: the loopback's, which is brought up
	// On runs a function where the members are to run; nil: here. Members that it starts need not
	// be reachable from here: New then does not wait for them to answer, and sets no password.
	On func(func() error) error
}

// New starts an etcd, which ends with the test.
func New(t *testing.T, o Options) *Cluster {
	t.Helper()
	c := &Cluster{t: t, dir: t.TempDir(), Prefix: "/weir/group", on: o.On}
	if c.here = c.on == nil; c.here {
		c.on = func(f func() error) error { return f() }
	}
	if o.Address == "" {
		o.Address = "127.0.0.1"
		c.do("bring the loopback up", loopbackUp)
	}
	scheme := "http"
	var more []string
	if o.Secure {
		scheme = "https"
		more = c.certificates(o.Address, time.Hour)
	}
	var ports []int
	c.do("find free ports", func() (err error) {
		ports, err = freePorts(o.Address, 2*o.Members)
		return err
	})
	var peers []string
	for i := range o.Members {
		peers = append(peers, fmt.Sprintf("m%d=%s://%s:%d", i, scheme, o.Address, ports[2*i]))
		c.Endpoints = append(c.Endpoints, fmt.Sprintf("%s://%s:%d", scheme, o.Address, ports[2*i+1]))
	}
	for i := range o.Members {
		_, peer, _ := strings.Cut(peers[i], "=")
		c.members = append(c.members, &member{args: append([]string{
			"--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(c.dir, fmt.Sprintf("m%d", i)),
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--listen-client-urls", c.Endpoints[i], "--advertise-client-urls", c.Endpoints[i],
			"--initial-cluster", strings.Join(peers, ","), "--initial-cluster-state", "new",
		}, more...)})
		c.Start(i)
	}
	if o.On != nil {
		return c
	}
	c.ready()
	if o.Password {
		c.requirePasswords()
	}
	return c
}

func (c *Cluster) do(what string, f func() error) {
	c.t.Helper()
	if err := c.on(f); err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// Start starts a member that was killed.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	etcd, err := exec.LookPath("etcd")
	if err != nil {
		c.t.Fatal("the tests need etcd (make deps):", err)
	}
	m := c.members[i]
	m.cmd = exec.Command(etcd, m.args...)
	m.cmd.Stdout, m.cmd.Stderr = &m.log, &m.log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.here { // elsewhere the thread that starts it ends, which would send the signal
		m.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	c.do("start etcd", m.cmd.Start)
	c.t.Cleanup(func() { c.Kill(i) })
}

// Kill ends a member as a power cut does.
func (c *Cluster) Kill(i int) {
	if m := c.members[i]; m.cmd != nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		m.cmd = nil
	}
}

// ready waits until the cluster answers.
func (c *Cluster) ready() {
	c.t.Helper()
	client := c.Client()
	Eventually(c.t, "etcd answers", func() error {
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		defer cancel()
		_, err := client.Get(ctx, c.Prefix)
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, &c.members[0].log)
		}
		return err
	})
}

// Eventually tries until there is no error.
func Eventually(t *testing.T, what string, try func() error) {
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

// Client returns a connection, which ends with the test.
func (c *Cluster) Client() *clientv3.Client {
	c.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints, TLS: c.tls(), Username: c.Username, Password: c.Password,
		DialTimeout: patience, Logger: zap.NewNop()})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { client.Close() })
	return client
}

func (c *Cluster) tls() *tls.Config {
	if c.CA == "" {
		return nil
	}
	ca, err := os.ReadFile(c.CA)
	if err != nil {
		c.t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		c.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
}

// freePorts returns free ports of an address that only the tests use.
func freePorts(address string, n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
