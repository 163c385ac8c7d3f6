package health

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"weir.io/weir/internal/model"
)

// newGRPC makes a probe that calls grpc.health.v1.Health/Check, on a connection of its own each
// time: one that stays open would not notice a server that takes no new connections.
func newGRPC(how *model.HealthCheck) (probe, error) {
	call := &healthCall{authority: how.ServerName()}
	if how.GRPC != nil {
		call.ask.Service = how.GRPC.Service
	}
	if how.TLS == nil {
		return overTCP(call.on), nil
	}
	return overTLS(how, call.on, "h2")
}

// healthCall is the call to every backend of a service.
type healthCall struct {
	ask       grpc_health_v1.HealthCheckRequest
	authority string // that the call is for; empty: the backend's address and port
}

// on calls the health service on an existing connection.
func (h *healthCall) on(ctx context.Context, conn net.Conn, a *attempt) error {
	dial := func(context.Context, string) (net.Conn, error) { return conn, nil }
	options := []grpc.DialOption{grpc.WithContextDialer(dial), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent("weir-health"),
		grpc.WithMaxHeaderListSize(mostHeader), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostBody))}
	if h.authority != "" {
		options = append(options, grpc.WithAuthority(h.authority))
	}
	client, err := grpc.NewClient("passthrough:///"+a.way.Target().String(), options...)
	if err != nil {
		return err
	}
	defer client.Close()
	answer, err := grpc_health_v1.NewHealthClient(client).Check(ctx, &h.ask)
	if ctx.Err() != nil && status.Code(err) != codes.OK {
		return ctx.Err()
	}
	switch status.Code(err) {
	case codes.OK:
	case codes.NotFound:
		return failure(NotServing, "the server does not know the service %q", h.ask.Service)
	case codes.Unimplemented:
		return failure(Malformed, "the server does not have grpc.health.v1.Health")
	case codes.Unavailable:
		return failure(Closed, "the call failed: %s", status.Convert(err).Message())
	default:
		return failure(Malformed, "the call failed: %s (%s)", status.Convert(err).Message(), status.Code(err))
	}
	if answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		return failure(NotServing, "the server says %s", answer.Status)
	}
	return nil
}
