package store

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const patience = 60 * time.Second

// cluster is a real etcd whose members serve the loopback of the tests' network.
type cluster struct {
	t       *testing.T
	dir     string
	options EtcdOptions
	members []*member
}

type member struct {
	args []string
	cmd  *exec.Cmd
	log  bytes.Buffer
}

// newCluster starts an etcd; a secure one wants a client certificate and a password.
func newCluster(t *testing.T, members int, secure bool) *cluster {
	t.Helper()
	loopbackUp(t)
	c := &cluster{t: t, dir: t.TempDir()}
	c.options = EtcdOptions{Prefix: "/weir/group", Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	scheme := "http"
	var more []string
	if secure {
		scheme = "https"
		more = c.certificates()
	}
	ports := freePorts(t, 2*members)
	var peers []string
	for i := range members {
		peers = append(peers, fmt.Sprintf("m%d=%s://127.0.0.1:%d", i, scheme, ports[2*i]))
		c.options.Endpoints = append(c.options.Endpoints, fmt.Sprintf("%s://127.0.0.1:%d", scheme, ports[2*i+1]))
	}
	for i := range members {
		_, peer, _ := strings.Cut(peers[i], "=")
		c.members = append(c.members, &member{args: append([]string{
			"--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(c.dir, fmt.Sprintf("m%d", i)),
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--listen-client-urls", c.options.Endpoints[i], "--advertise-client-urls", c.options.Endpoints[i],
			"--initial-cluster", strings.Join(peers, ","), "--initial-cluster-state", "new",
		}, more...)})
		c.start(i)
	}
	c.ready()
	if secure {
		c.requirePasswords()
	}
	return c
}

func (c *cluster) start(i int) {
	c.t.Helper()
	etcd, err := exec.LookPath("etcd")
	if err != nil {
		c.t.Fatal("the tests need etcd (make deps):", err)
	}
	m := c.members[i]
	m.cmd = exec.Command(etcd, m.args...)
	m.cmd.Stdout, m.cmd.Stderr = &m.log, &m.log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		c.t.Fatal("start etcd:", err)
	}
	c.t.Cleanup(func() { c.kill(i) })
}

// kill ends a member as a power cut does.
func (c *cluster) kill(i int) {
	if m := c.members[i]; m.cmd != nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		m.cmd = nil
	}
}

// ready waits until the cluster answers.
func (c *cluster) ready() {
	c.t.Helper()
	e := c.open()
	eventually(c.t, "etcd answers", func() error {
		_, err := e.Read(c.t.Context())
		return err
	})
}

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
func (c *cluster) client() *clientv3.Client {
	c.t.Helper()
	client, err := c.options.dial()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { client.Close() })
	return client
}

// requirePasswords makes a user that may use weir's keys and no others.
func (c *cluster) requirePasswords() {
	c.t.Helper()
	ctx, client := c.t.Context(), c.client()
	do := func(what string, err error) {
		if err != nil {
			c.t.Fatalf("%s: %v", what, err)
		}
	}
	_, err := client.RoleAdd(ctx, "root")
	do("add the role root", err)
	_, err = client.UserAdd(ctx, "root", "of-the-tests")
	do("add the user root", err)
	_, err = client.UserGrantRole(ctx, "root", "root")
	do("grant root", err)
	_, err = client.RoleAdd(ctx, "weir")
	do("add the role weir", err)
	prefix := c.options.Prefix + "/"
	_, err = client.RoleGrantPermission(ctx, "weir", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
	do("grant the prefix", err)
	_, err = client.UserAdd(ctx, "director", "of-the-group")
	do("add the user director", err)
	_, err = client.UserGrantRole(ctx, "director", "weir")
	do("grant weir", err)
	_, err = client.AuthEnable(ctx)
	do("require passwords", err)
	c.options.Username, c.options.Password = "director", "of-the-group"
}

// certificates writes a CA, and one certificate of it for all, and returns the
// members' options.
func (c *cluster) certificates() []string {
	c.t.Helper()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	keyText, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	o := &c.options
	o.CA, o.Cert, o.Key = filepath.Join(c.dir, "ca.pem"), filepath.Join(c.dir, "cert.pem"), filepath.Join(c.dir, "key.pem")
	c.certificate(o.CA, ca, caKey.Public(), ca, caKey)
	c.certificate(o.Cert, leaf, key.Public(), ca, caKey)
	writeText(c.t, o.Key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyText}))
	return []string{"--client-cert-auth", "--trusted-ca-file", o.CA, "--cert-file", o.Cert, "--key-file", o.Key,
		"--peer-client-cert-auth", "--peer-trusted-ca-file", o.CA, "--peer-cert-file", o.Cert, "--peer-key-file", o.Key}
}

func (c *cluster) certificate(file string, cert *x509.Certificate, key any, by *x509.Certificate, byKey *ecdsa.PrivateKey) {
	c.t.Helper()
	text, err := x509.CreateCertificate(rand.Reader, cert, by, key, byKey)
	if err != nil {
		c.t.Fatal(err)
	}
	writeText(c.t, file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: text}))
}

// freePorts returns ports of the loopback: nobody else is in this network.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

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
