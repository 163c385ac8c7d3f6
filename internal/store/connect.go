package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"weir.io/weir/internal/model"
)

// EtcdOptions say where a group's etcd is.
type EtcdOptions struct {
	Endpoints          []string // https://HOST:PORT, of every member
	Prefix             string   // of weir's keys: one group's
	CA, Cert, Key      string   // PEM files; none: the system's CAs, and no client certificate
	Username, Password string
	PasswordFile       string // has the password in its first line; it is read for each client
	Cache              string // directory of the last known state; empty: none is kept
	Log                *slog.Logger
	// Warn lists what is wrong with a part of the shared data, or nil if nothing is; if Warn is nil
	// it is not listed.
	Warn func(kind model.ProblemKind, part string, err error)
}

// The parts of the shared data whose problems are told.
const (
	partEtcd    = "etcd"    // the state
	partFlows   = "flows"   // how the directors that tell of flows know each other
	partViews   = "views"   // what probes find
	partReports = "reports" // of connections, by agents

	partNamesake = "namesake" // another director with this one's address
	partClocks   = "clocks"   // of the group's directors
	partSettings = "settings" // of the group's directors

	partCertificates = "etcd's certificates"
)

// warn lists what is wrong with a part; nil: nothing.
func (o *EtcdOptions) warn(kind model.ProblemKind, part, consequence string, err error) {
	if o.Warn == nil {
		return
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", consequence, err)
	}
	o.Warn(kind, part, err)
}

// over ends what is listed of parts of the group.
func (o *EtcdOptions) over(parts ...string) {
	for _, part := range parts {
		o.warn(model.ProblemGroup, part, "", nil)
	}
}

// How long one request may take, and how soon a connection that has died is noticed.
const (
	requestTimeout   = 5 * time.Second
	keepAliveTime    = 5 * time.Second
	keepAliveTimeout = 3 * time.Second
)

// reconnect bounds the pause between two attempts: gRPC's own is up to two minutes, and an etcd
// that is back would not be found for that long.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: lastPause},
	MinConnectTimeout: requestTimeout,
}

// dial makes a client. With a user it asks etcd for a token, so it can fail without etcd; else it
// does not wait for etcd.
func (o EtcdOptions) dial() (*clientv3.Client, error) {
	secure, err := o.tls()
	if err != nil {
		return nil, err
	}
	password, err := o.password()
	if err != nil {
		return nil, err
	}
	config := clientv3.Config{
		Endpoints: o.Endpoints, TLS: secure, Username: o.Username, Password: password,
		DialTimeout: requestTimeout, DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout,
		PermitWithoutStream: true,
		MaxCallRecvMsgSize:  mostState, // an answer has no more than all sets; the client's default is 2 GiB
		DialOptions:         []grpc.DialOption{grpc.WithConnectParams(reconnect)},
		Logger:              zap.NewNop(), // the errors have all of it
	}
	if strings.HasPrefix(o.Endpoints[0], "https:") { // the client takes the first one's scheme for all
		config.DialOptions = append(config.DialOptions, grpc.WithTransportCredentials(renewed{credentials.NewTLS(secure), o}))
	}
	if o.Username != "" {
		config.DialOptions = append(config.DialOptions, askForToken(config))
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(o.Endpoints, ", "), orUnreachable(err))
	}
	return client, nil
}

func (o EtcdOptions) password() (string, error) {
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
func (o EtcdOptions) halfPair() error {
	if (o.Cert == "") != (o.Key == "") {
		return errors.New("a client certificate for etcd needs its key, and a key its certificate")
	}
	return nil
}

// renewed secures each connection with the current contents of the files: the CA can be renewed
// during operation, too, but the client itself reads it only once.
type renewed struct {
	credentials.TransportCredentials
	options EtcdOptions
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
func (o EtcdOptions) tls() (*tls.Config, error) {
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

// outdated says which certificate has expired, or is not valid yet. An existing connection goes on:
// only the next one fails.
func (o EtcdOptions) outdated(now time.Time) error {
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

// connect returns the client, which it makes when it is first needed: a director can start without
// etcd.
func (e *Etcd) connect() (*clientv3.Client, error) {
	e.connecting.Lock()
	defer e.connecting.Unlock()
	if e.client == nil && !e.closed {
		client, err := e.options.dial()
		if err != nil {
			return nil, err
		}
		e.client = client
	}
	if e.closed {
		return nil, errors.New("the store is closed")
	}
	return e.client, nil
}

// Close ends the connection.
func (e *Etcd) Close() error {
	e.connecting.Lock()
	defer e.connecting.Unlock()
	e.closed = true
	if e.client == nil {
		return nil
	}
	return e.client.Close()
}

// elections are etcd's errors while its members choose a leader.
var elections = []error{rpctypes.ErrLeaderChanged, rpctypes.ErrNoLeader, rpctypes.ErrNotLeader,
	rpctypes.ErrTimeoutDueToLeaderFail, rpctypes.ErrTimeoutDueToConnectionLost}

// commit runs a transaction: then, if all comparisons hold. While etcd chooses a leader it is tried
// again, although it may have been made: a second time changes nothing, because the keys are named
// by their content or compared with their earlier values.
func (e *Etcd) commit(ctx context.Context, compare []clientv3.Cmp, then ...clientv3.Op) (*clientv3.TxnResponse, error) {
	return e.transact(ctx, func(t clientv3.Txn) clientv3.Txn { return t.If(compare...).Then(then...) })
}

// ErrUnreachable says that etcd does not answer, or has no majority that could; not that it
// refuses.
var ErrUnreachable = errors.New("etcd cannot be reached")

// orUnreachable wraps ErrUnreachable around an error of the client that means that.
func orUnreachable(err error) error {
	code := status.Code(err)
	if answered := (rpctypes.EtcdError{}); errors.As(err, &answered) {
		code = answered.Code()
	}
	if errors.Is(err, context.DeadlineExceeded) || code == codes.Unavailable || code == codes.DeadlineExceeded {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}

func (e *Etcd) transact(ctx context.Context, fill func(clientv3.Txn) clientv3.Txn) (*clientv3.TxnResponse, error) {
	client, err := e.connect()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for {
		response, err := fill(client.Txn(ctx)).Commit()
		if err == nil {
			return response, nil
		}
		if ctx.Err() != nil || !slices.ContainsFunc(elections, func(e error) bool { return errors.Is(err, e) }) {
			return nil, fmt.Errorf("ask etcd at %s: %w", strings.Join(e.options.Endpoints, ", "), orUnreachable(err))
		}
		wait(ctx, firstPause)
	}
}
