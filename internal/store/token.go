package store

import (
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

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
