package etcdclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"weir.io/weir/internal/model"
)

func (o Options) password() (string, error) {
	if o.PasswordFile == "" {
		return o.Password, nil
	}
	text, err := os.ReadFile(o.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("read the password for etcd: %w", err)
	}
	password, _, _ := strings.Cut(string(text), "\n")
	return password, nil
}

// halfPair refuses a certificate without a key, or a key without a certificate.
func (o Options) halfPair() error {
	if (o.Cert == "") != (o.Key == "") {
		return errors.New("a client certificate for etcd needs its key, and a key its certificate")
	}
	return nil
}

// renewed secures each connection with the current contents of the files: the CA can be renewed
// while the process runs. The client reads it only once.
type renewed struct {
	credentials.TransportCredentials
	options Options
}

// ClientHandshake secures a connection.
func (r renewed) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, err := r.options.tls()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(secure).ClientHandshake(ctx, authority, conn)
}

// Clone returns the same value: nothing in it changes.
func (r renewed) Clone() credentials.TransportCredentials { return r }

// tls returns the configuration of TLS by the current contents of the files.
func (o Options) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		text, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, fmt.Errorf("read the CA of etcd: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read the CA of etcd: %s has no certificate", o.CA)
		}
	}
	if err := o.halfPair(); err != nil {
		return nil, err
	}
	if o.Cert == "" {
		return c, nil
	}
	pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
	if err != nil {
		return nil, fmt.Errorf("read the client certificate for etcd: %w", err)
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return c, nil
}

// Outdated says which certificate has expired, or is not valid yet. An existing connection goes on:
// only the next one fails.
func (o Options) Outdated(now time.Time) error {
	var all []error
	if text, err := os.ReadFile(o.CA); err == nil {
		if err := model.OutdatedCA(text, now); err != nil {
			all = append(all, fmt.Errorf("%s: %w", o.CA, err))
		}
	}
	if pair, err := tls.LoadX509KeyPair(o.Cert, o.Key); err == nil {
		if err := model.Outdated(pair.Leaf, now); err != nil {
			all = append(all, fmt.Errorf("%s: %w", o.Cert, err))
		}
	}
	return errors.Join(all...)
}

// askForToken makes a client ask for a token on a separate connection, which sends no token.
//
// The client sends its token with every request, even when it asks for a new one because etcd no
// longer knows the old one: etcd forgets tokens when it restarts or the password changes. Before
// 3.5 etcd refuses even that request (etcd-io/etcd#12165), the client then asks for a token again,
// and so on until its time is up: it would never be served again.
func askForToken(anonymous clientv3.Config) grpc.DialOption {
	anonymous.Username, anonymous.Password = "", ""
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, reply any,
		connection *grpc.ClientConn, ask grpc.UnaryInvoker, options ...grpc.CallOption) error {
		if method != etcdserverpb.Auth_Authenticate_FullMethodName {
			return ask(ctx, method, request, reply, connection, options...)
		}
		client, err := clientv3.New(anonymous)
		if err != nil {
			return err
		}
		defer client.Close()
		return ask(ctx, method, request, reply, client.ActiveConnection(), options...)
	})
}
