package health

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// probe is one way to check backends. It is made once for a check and may be used for many backends
// at once, each in a goroutine of its own. It returns nil when the backend is healthy.
type probe func(ctx context.Context, a *attempt) error

// kinds makes the probes of each kind that does more than connect.
var kinds = map[model.CheckKind]func(how *model.HealthCheck) (probe, error){
	model.CheckHTTP:  newHTTP,
	model.CheckHTTPS: newHTTPS,
	model.CheckTLS:   newTLS,
	model.CheckGRPC:  newGRPC,
	model.CheckUDP:   newUDP,
	model.CheckDNS:   newDNS,
	model.CheckICMP:  func(*model.HealthCheck) (probe, error) { return probeICMP, nil },
	model.CheckSCTP:  func(*model.HealthCheck) (probe, error) { return probeSCTP, nil },
	model.CheckSMTP:  newSMTP,
	model.CheckExec:  func(*model.HealthCheck) (probe, error) { return probeExec, nil },
}

// newProbe makes a probe that may need parts of the checker.
func (c *Checker) newProbe(how *model.HealthCheck) (probe, error) {
	if how.Kind == model.CheckRedirect {
		return c.redirects.probe, nil
	}
	return newProbe(how)
}

// newProbe makes a probe of a valid check; nil: the connector makes it.
func newProbe(how *model.HealthCheck) (probe, error) {
	if connects[how.Kind] != nil {
		return nil, nil
	}
	of, known := kinds[how.Kind]
	if !known {
		return nil, fmt.Errorf("%q is not a kind of check", how.Kind)
	}
	return of(how)
}

// connects says how sockets are prepared for the checks that only connect.
//
// Kind syn waits for a SYN-ACK and answers with an RST: the server's process never sees a
// connection. Linux delays the handshake's last ACK for 200 ms if it expects the socket to send
// data soon (TCP_QUICKACK off; tcp_rcv_synsent_state_process in net/ipv4/tcp_input.c).
var connects = map[model.CheckKind]prepare{
	model.CheckTCP: func(int) error { return nil },
	model.CheckSYN: func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0) },
}

// reset makes closing the socket send an RST.
func reset(fd int) error {
	return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

// overTCP makes a probe that connects, and does something on the connection.
func overTCP(do func(context.Context, net.Conn, *attempt) error) probe {
	return func(ctx context.Context, a *attempt) error {
		conn, err := a.connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		return do(ctx, conn, a)
	}
}

// overTLS makes the same over TLS, with these protocols of ALPN.
func overTLS(how *model.HealthCheck, do func(context.Context, net.Conn, *attempt) error, protocols ...string) (probe, error) {
	config, err := tlsConfig(how)
	if err != nil {
		return nil, err
	}
	config.NextProtos = protocols
	return with(config, do), nil
}

// with makes a probe over TLS.
func with(config *tls.Config, do func(context.Context, net.Conn, *attempt) error) probe {
	return overTCP(func(ctx context.Context, conn net.Conn, a *attempt) error {
		secure, err := a.shake(ctx, conn, config)
		if err != nil {
			return err
		}
		return do(ctx, secure, a)
	})
}

// newTLS makes a probe that ends after the handshake.
func newTLS(how *model.HealthCheck) (probe, error) {
	return overTLS(how, func(context.Context, net.Conn, *attempt) error { return nil })
}

// tlsConfig says what a check demands of a certificate. It has no tickets: a resumed session says
// nothing about the server's current certificate.
func tlsConfig(how *model.HealthCheck) (*tls.Config, error) {
	config := &tls.Config{ServerName: how.ServerName()}
	if how.TLS == nil {
		return config, nil
	}
	config.InsecureSkipVerify = how.TLS.SkipVerify
	if how.TLS.CA != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(how.TLS.CA)) {
			return nil, errors.New("tls.ca has no certificate")
		}
	}
	return config, nil
}

// shake makes the TLS handshake on a connection.
func (a *attempt) shake(ctx context.Context, conn net.Conn, config *tls.Config) (*tls.Conn, error) {
	a.at = shaking
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	a.at = asking
	return secure, nil
}
