package flowsync

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"time"
)

// Identities says which director has which certificate.
type Identities interface {
	// Fingerprint returns the fingerprint that a director has written, "" if none. known is false
	// as long as that is not known.
	Fingerprint(director netip.Addr) (fingerprint string, known bool)
	// Lives says whether the director was there in the last seconds.
	Lives(director netip.Addr) bool
}

// newCertificate makes a key pair that lives as long as this process. The certificate has no names:
// it is known by its fingerprint.
func newCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a key for the group: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "weir director"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate for the group: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func fingerprintOf(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// errStranger says what is wrong with the other end's certificate.
var errStranger = errors.New("the certificate is not that of a director of the group")

// secure returns the TLS configuration of both ends of a connection: the other end has to show a
// certificate whose fingerprint is accepted. Names and issuers mean nothing, so TLS leaves the
// verification to this function.
func (s *Sync) secure(accepts func(fingerprint string) bool) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: Protocols(), Certificates: []tls.Certificate{s.certificate},
		ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true, SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || !accepts(fingerprintOf(state.PeerCertificates[0].Raw)) {
				return errStranger
			}
			// TLS gives a client no error if the server has agreed on none of its protocols.
			if versionOf(state.NegotiatedProtocol) == 0 {
				return fmt.Errorf("the other end speaks none of %s", strings.Join(Protocols(), ", "))
			}
			return nil
		},
	}
}
