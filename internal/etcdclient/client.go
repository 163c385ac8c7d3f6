// Package etcdclient is a process's connection to the etcd that a group shares: requests, leases, and
// copies of keys that are kept up to date. What the keys mean is for others: [weir.io/weir/internal/store]
// and [weir.io/weir/internal/group].
package etcdclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
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
	"weir.io/weir/internal/retry"
)

// Options say where the etcd is, and which keys are the group's.
type Options struct {
	Endpoints          []string // https://HOST:PORT, of every member
	Prefix             string   // of weir's keys: one group's
	CA, Cert, Key      string   // PEM files; none: the system's CAs, and no client certificate
	Username, Password string
	PasswordFile       string // has the password in its first line; it is read for each client
	Log                *slog.Logger
	// Warn lists what is wrong with a part of the shared data, or nil if nothing is; if Warn is nil
	// it is not listed.
	Warn func(kind model.ProblemKind, part string, err error)
}

// Problem lists what is wrong with a part of the shared data, and what follows from it; nil: nothing is
// wrong.
func (o *Options) Problem(kind model.ProblemKind, part, consequence string, err error) {
	if o.Warn == nil {
		return
	}
	if err != nil && consequence != "" {
		err = fmt.Errorf("%s: %w", consequence, err)
	}
	o.Warn(kind, part, err)
}

// How long one request may take, and how soon a connection that has died is noticed.
const (
	RequestTimeout   = 5 * time.Second
	keepAliveTime    = 5 * time.Second
	keepAliveTimeout = 3 * time.Second
)

// The first pause after etcd could not be asked, and the longest.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// MostAnswer is how many bytes an answer may have: a group's sets have no more. The default of etcd's
// client is 2 GiB.
const MostAnswer = 256 << 20

// reconnect bounds the pause between two attempts: gRPC's own is up to two minutes, and an etcd
// that is back would not be found for that long.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: lastPause},
	MinConnectTimeout: RequestTimeout,
}

// dial makes a client. With a user it asks etcd for a token, so it can fail without etcd; else it
// does not wait for etcd.
func (o Options) dial() (*clientv3.Client, error) {
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
		DialTimeout: RequestTimeout, DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout,
		PermitWithoutStream: true,
		MaxCallRecvMsgSize:  MostAnswer,
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

// Client is a connection to the group's etcd. Its Options are not changed once it is used.
type Client struct {
	Options

	mu     sync.Mutex
	client *clientv3.Client
	closed bool
}

// New returns a client of an etcd that need not be reachable yet. The files with certificates and the
// password need not exist yet, either: they are read when needed, again after each error.
func New(o Options) (*Client, error) {
	if len(o.Endpoints) == 0 {
		return nil, errors.New("etcd has no endpoints")
	}
	if err := o.halfPair(); err != nil {
		return nil, err
	}
	return &Client{Options: o}, nil
}

// Connect returns etcd's own client, which it makes when it is first needed: a director can start
// without etcd.
func (c *Client) Connect() (*clientv3.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("the connection to etcd is closed")
	}
	if c.client == nil {
		client, err := c.dial()
		if err != nil {
			return nil, err
		}
		c.client = client
	}
	return c.client, nil
}

// Close ends the connection.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.client == nil {
		return nil
	}
	return c.client.Close()
}

// elections are etcd's errors while its members choose a leader.
var elections = []error{rpctypes.ErrLeaderChanged, rpctypes.ErrNoLeader, rpctypes.ErrNotLeader,
	rpctypes.ErrTimeoutDueToLeaderFail, rpctypes.ErrTimeoutDueToConnectionLost}

// Commit runs a transaction: then, if all comparisons hold. See Transact.
func (c *Client) Commit(ctx context.Context, compare []clientv3.Cmp, then ...clientv3.Op) (*clientv3.TxnResponse, error) {
	return c.Transact(ctx, func(t clientv3.Txn) clientv3.Txn { return t.If(compare...).Then(then...) })
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

// Transact runs the transaction that fill returns. While etcd chooses a leader it is tried again,
// although it may have been made: a second time must change nothing.
func (c *Client) Transact(ctx context.Context, fill func(clientv3.Txn) clientv3.Txn) (*clientv3.TxnResponse, error) {
	client, err := c.Connect()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	for {
		response, err := fill(client.Txn(ctx)).Commit()
		if err == nil {
			return response, nil
		}
		if ctx.Err() != nil || !slices.ContainsFunc(elections, func(e error) bool { return errors.Is(err, e) }) {
			return nil, c.failed("", err)
		}
		retry.Sleep(ctx, firstPause)
	}
}

// failed says what etcd did not do, such as " to keep reports".
func (c *Client) failed(what string, err error) error {
	return fmt.Errorf("ask etcd at %s%s: %w", strings.Join(c.Endpoints, ", "), what, orUnreachable(err))
}
