package api

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/model"
)

// access is which clients may ask over TCP, by the configuration's files at one moment.
type access struct {
	certificate *tls.Certificate
	clientCA    *x509.CertPool               // nil: no client has a certificate
	tokens      map[[sha256.Size]byte]Caller // by their digests
	names       map[string]Caller            // callers by a name in their certificates
	clientCAs   []byte                       // the certificates of clientCA, in PEM
}

// leastToken is the least length of a token: shorter ones can be guessed.
const leastToken = 16

// digestPrefix begins the digest in a file that does not have the token itself.
const digestPrefix = "sha256:"

// readAccess reads the files that a configuration names.
func readAccess(c *model.API) (*access, error) {
	a := &access{tokens: map[[sha256.Size]byte]Caller{}, names: map[string]Caller{}}
	if len(c.Listen) == 0 {
		return a, nil
	}
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("api.cert: %w", err)
	}
	a.certificate = &pair
	if c.ClientCA != "" {
		pem, err := os.ReadFile(c.ClientCA)
		if err != nil {
			return nil, fmt.Errorf("api.client-ca: %w", err)
		}
		a.clientCAs = pem
		if a.clientCA = x509.NewCertPool(); !a.clientCA.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("api.client-ca: %s has no certificate in PEM", c.ClientCA)
		}
	}
	for i := range c.Clients {
		if err := a.add(&c.Clients[i]); err != nil {
			return nil, fmt.Errorf("api.clients[%d].token-file: %w", i, err)
		}
	}
	return a, nil
}

// outdated says which certificates have expired, are not valid yet, or are none of a server: the API
// goes on with them, and clients refuse it, or are refused.
func (a *access) outdated(c *model.API, now time.Time) error {
	if a == nil || a.certificate == nil {
		return nil
	}
	var all []error
	if err := model.Outdated(a.certificate.Leaf, now); err != nil {
		all = append(all, fmt.Errorf("api.cert: %s: %w: clients refuse it", c.Cert, err))
	}
	if uses := a.certificate.Leaf.ExtKeyUsage; len(uses) > 0 && !slices.Contains(uses, x509.ExtKeyUsageServerAuth) && !slices.Contains(uses, x509.ExtKeyUsageAny) {
		all = append(all, fmt.Errorf("api.cert: %s: the certificate is not for a server (extended key usage): clients refuse it", c.Cert))
	}
	if err := model.OutdatedCA(a.clientCAs, now); err != nil {
		all = append(all, fmt.Errorf("api.client-ca: %s: %w: clients with certificates are refused", c.ClientCA, err))
	}
	return errors.Join(all...)
}

func (a *access) add(c *model.APIClient) error {
	caller := Caller{Name: c.Name, Role: c.Role, Owner: c.WritesTo(), Agent: reporterOf(c), Segments: newSegmentSet(c.Segments)}
	if c.Certificate != "" {
		a.names[c.Certificate] = caller
	}
	if c.TokenFile == "" {
		return nil
	}
	text, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return err
	}
	digest, err := digestOf(text)
	if err != nil {
		return fmt.Errorf("%s: %w", c.TokenFile, err)
	}
	if other, taken := a.tokens[digest]; taken {
		return fmt.Errorf("%s: %s has the same token", c.TokenFile, other.Name)
	}
	a.tokens[digest] = caller
	return nil
}

// digestOf returns the digest of the token in a file, which may have only the digest. Its errors do
// not repeat the file's contents.
func digestOf(text []byte) (digest [sha256.Size]byte, err error) {
	line, rest, _ := bytes.Cut(text, []byte("\n"))
	if len(bytes.TrimSpace(rest)) > 0 {
		return digest, errors.New("has more than one line")
	}
	token := strings.TrimSpace(string(line))
	if digits, is := strings.CutPrefix(token, digestPrefix); is {
		b, err := hex.DecodeString(digits)
		if err != nil || len(b) != len(digest) {
			return digest, fmt.Errorf("has %s, and behind it not %d hexadecimal digits", digestPrefix, 2*len(digest))
		}
		return [sha256.Size]byte(b), nil
	}
	if len(token) < leastToken {
		return digest, fmt.Errorf("has a token of less than %d characters; openssl rand -hex 32 makes one", leastToken)
	}
	return sha256.Sum256([]byte(token)), nil
}

// caller returns the caller that sends a request; false: it is not known.
func (a *access) caller(r *http.Request) (Caller, bool) {
	if name, token, shown := shownToken(r); shown {
		// It looks for a digest, not the token: the time of the search reveals nothing about the
		// token.
		c, known := a.tokens[sha256.Sum256([]byte(token))]
		return c, known && token != "" && (name == "" || name == c.Name) // a caller that shows a token is not identified by its certificate
	}
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return Caller{}, false
	}
	leaf := r.TLS.VerifiedChains[0][0]
	for _, name := range append([]string{leaf.Subject.CommonName}, leaf.DNSNames...) {
		if c, known := a.names[name]; known && name != "" {
			return c, true
		}
	}
	return Caller{}, false
}

// shownToken returns the token that a request shows, and, if a browser has asked its user for it,
// the name that the user gave.
func shownToken(r *http.Request) (name, token string, shown bool) {
	text := r.Header.Get("Authorization")
	if text == "" {
		return "", "", false
	}
	if scheme, token, _ := strings.Cut(text, " "); strings.EqualFold(scheme, "bearer") {
		return "", strings.TrimSpace(token), true
	}
	name, token, _ = r.BasicAuth()
	if name == "" {
		return "", "", true // shown, but of no client
	}
	return name, token, true
}

// tls returns the configuration of TLS.
func (a *access) tls() *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{*a.certificate}}
	if a.clientCA != nil {
		c.ClientCAs, c.ClientAuth = a.clientCA, tls.VerifyClientCertIfGiven
	}
	return c
}
