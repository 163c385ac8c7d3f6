package ovsdb

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"weir.io/weir/internal/model"
)

// TLS names the PEM files by which servers and this client trust each other at endpoints of ssl:. They
// are read for each connection, so they can be renewed while the process runs.
type TLS struct {
	CA, Cert, Key string
}

// Endpoint is where a server listens.
type Endpoint struct {
	Secure           bool
	network, address string
}

// ParseEndpoint reads an endpoint as ovsdb(7) has them: tcp:HOST:PORT, ssl:HOST:PORT, unix:PATH, with an
// IPv6 address in brackets.
func ParseEndpoint(text string) (Endpoint, error) {
	scheme, rest, _ := strings.Cut(text, ":")
	switch scheme {
	case "unix":
		if rest == "" {
			return Endpoint{}, fmt.Errorf("endpoint %q is not unix:PATH", text)
		}
		return Endpoint{network: "unix", address: rest}, nil
	case "tcp", "ssl":
		host, port, err := net.SplitHostPort(rest)
		if number, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil || number == 0 || host == "" {
			return Endpoint{}, fmt.Errorf("endpoint %q is not %s:HOST:PORT", text, scheme)
		}
		return Endpoint{Secure: scheme == "ssl", network: "tcp", address: rest}, nil
	}
	return Endpoint{}, fmt.Errorf("endpoint %q is neither tcp:HOST:PORT nor ssl:HOST:PORT nor unix:PATH", text)
}

func (e Endpoint) dial(ctx context.Context, t TLS) (net.Conn, error) {
	if !e.Secure {
		return (&net.Dialer{}).DialContext(ctx, e.network, e.address)
	}
	config, err := t.config(time.Now)
	if err != nil {
		return nil, err
	}
	return (&tls.Dialer{Config: config}).DialContext(ctx, e.network, e.address)
}

// Check says what is missing among the names of the files.
func (t TLS) Check() error {
	if t.CA == "" || t.Cert == "" || t.Key == "" {
		return errors.New("an endpoint of ssl: needs a CA, a certificate and a key")
	}
	return nil
}

// config trusts every certificate of the CA, whatever name it has, as Open vSwitch's own clients do: the
// certificates that ovs-pki(8) makes have no names that could be compared with an address.
func (t TLS) config(now func() time.Time) (*tls.Config, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, fmt.Errorf("read the CA: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("read the CA: %s has no certificate", t.CA)
	}
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("read the client certificate: %w", err)
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS12,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
		InsecureSkipVerify:   true, // VerifyConnection does, without the name
		VerifyConnection: func(state tls.ConnectionState) error {
			options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), CurrentTime: now(),
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
			for _, c := range state.PeerCertificates[1:] {
				options.Intermediates.AddCert(c)
			}
			if _, err := state.PeerCertificates[0].Verify(options); err != nil {
				return fmt.Errorf("the server's certificate: %w", err)
			}
			return nil
		},
	}, nil
}

// Outdated says which certificate has expired, or is not valid yet. An existing connection goes on:
// only the next one fails.
func (t TLS) Outdated(now time.Time) error {
	var all []error
	if text, err := os.ReadFile(t.CA); err == nil {
		if err := model.OutdatedCA(text, now); err != nil {
			all = append(all, fmt.Errorf("%s: %w", t.CA, err))
		}
	}
	if pair, err := tls.LoadX509KeyPair(t.Cert, t.Key); err == nil {
		if err := model.Outdated(pair.Leaf, now); err != nil {
			all = append(all, fmt.Errorf("%s: %w", t.Cert, err))
		}
	}
	return errors.Join(all...)
}
