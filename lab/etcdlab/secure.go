package etcdlab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// requirePasswords makes a user that may use weir's keys and no others.
func (c *Cluster) requirePasswords() {
	c.t.Helper()
	ctx, client := c.t.Context(), c.Client()
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
	prefix := c.Prefix + "/"
	_, err = client.RoleGrantPermission(ctx, "weir", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
	do("grant the prefix", err)
	_, err = client.UserAdd(ctx, "director", "of-the-group")
	do("add the user director", err)
	_, err = client.UserGrantRole(ctx, "director", "weir")
	do("grant weir", err)
	_, err = client.AuthEnable(ctx)
	do("require passwords", err)
	c.Username, c.Password = "director", "of-the-group"
}

// Reissue writes another CA and its certificates into the same files. Members that start later, and
// clients that read the files again, use them. They are valid for the given time from now on.
func (c *Cluster) Reissue(lasts time.Duration) {
	c.t.Helper()
	at, err := url.Parse(c.Endpoints[0])
	if err != nil {
		c.t.Fatal(err)
	}
	c.certificates(at.Hostname(), lasts)
}

// certificates writes a CA and one certificate of it, which all share, and returns the members'
// options.
func (c *Cluster) certificates(address string, lasts time.Duration) []string {
	c.t.Helper()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(lasts)}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), IPAddresses: []net.IP{net.ParseIP(address)}, NotAfter: ca.NotAfter,
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
	c.CA, c.Cert, c.Key = filepath.Join(c.dir, "ca.pem"), filepath.Join(c.dir, "cert.pem"), filepath.Join(c.dir, "key.pem")
	c.certificate(c.CA, ca, caKey.Public(), ca, caKey)
	c.certificate(c.Cert, leaf, key.Public(), ca, caKey)
	c.write(c.Key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyText}))
	return []string{"--client-cert-auth", "--trusted-ca-file", c.CA, "--cert-file", c.Cert, "--key-file", c.Key,
		"--peer-client-cert-auth", "--peer-trusted-ca-file", c.CA, "--peer-cert-file", c.Cert, "--peer-key-file", c.Key}
}

func (c *Cluster) certificate(file string, cert *x509.Certificate, key any, by *x509.Certificate, byKey *ecdsa.PrivateKey) {
	c.t.Helper()
	text, err := x509.CreateCertificate(rand.Reader, cert, by, key, byKey)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: text}))
}

func (c *Cluster) write(file string, text []byte) {
	c.t.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		c.t.Fatal(err)
	}
}
