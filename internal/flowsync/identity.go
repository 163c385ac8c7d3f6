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
	// Fingerprint returns what a director has written of its certificate, "" if nothing.
	// known is false as long as it cannot be said.
	Fingerprint(director netip.Addr) (fingerprint string, known bool)
	// Lives says whether the director was there some seconds ago.
	Lives(director netip.Addr) bool
}

// newCertificate makes a key pair that lives as long as this process. The certificate
// says nothing: it is known by its fingerprint.
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

// errStranger is what is wrong with the certificate of the other end.
var errStranger = errors.New("the certificate is not that of a director of the group")

// secure returns how both ends of a connection are secured: the other one has to show a
// certificate with a fingerprint that is accepted. Names and issuers mean nothing, so
// TLS is told to leave the judgement to this.
func (s *Sync) secure(accepts func(fingerprint string) bool) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: protocols, Certificates: []tls.Certificate{s.certificate},
		ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true, SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || !accepts(fingerprintOf(state.PeerCertificates[0].Raw)) {
				return errStranger
			}
			// A client is not told of what it has offered alone: nothing was agreed on.
			if versionOf(state.NegotiatedProtocol) == 0 {
				return fmt.Errorf("the other end speaks none of %s", strings.Join(protocols, ", "))
			}
			return nil
		},
	}
}
