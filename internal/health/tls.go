package health

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"

	"weir.io/weir/internal/model"
)

// newTLS makes a probe that ends after the handshake.
func newTLS(how *model.HealthCheck) (probe, error) {
	config, err := tlsConfig(how)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, a *attempt) error {
		conn, err := a.connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = a.shake(ctx, conn, config)
		return err
	}, nil
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
