package api

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// RemoteOptions say how to ask a director over TCP.
type RemoteOptions struct {
	URL       string // https://HOST:PORT; http:// only on this host
	CA        string // PEM: CAs that may have signed its certificate; empty: the system's CAs
	Cert, Key string // PEM: of the client
	TokenFile string
}

// NewRemoteClient returns a client of the director at a URL.
func NewRemoteClient(o RemoteOptions) (*Client, error) {
	u, err := url.Parse(o.URL)
	secure := err == nil && u.Scheme == "https"
	if err != nil || u.Host == "" || !secure && (u.Scheme != "http" || !ownName(u.Host)) || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("%q is not https://HOST:PORT", o.URL)
	}
	t := &http.Transport{Proxy: nil, DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13}}
	if o.CA != "" {
		pem, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, fmt.Errorf("read who may have signed: %w", err)
		}
		if t.TLSClientConfig.RootCAs = x509.NewCertPool(); !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate in PEM", o.CA)
		}
	}
	if o.Cert != "" || o.Key != "" {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, fmt.Errorf("read the client's certificate: %w", err)
		}
		// It is shown even if the director does not name its CA: then the director says what is wrong
		// with it. By Certificates it would not be shown, as if there were none.
		t.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	where := u.Scheme + "://" + u.Host
	c := &Client{where: where, base: where, http: http.Client{Transport: t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	if o.TokenFile != "" {
		if c.token, err = readToken(o.TokenFile); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// readToken returns the token in a file. Its errors do not repeat the file's contents.
func readToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	switch {
	case token == "":
		return "", fmt.Errorf("read the token: %s is empty", file)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("read the token: %s has more than one word", file)
	case strings.HasPrefix(token, digestPrefix):
		return "", fmt.Errorf("read the token: %s has its digest, by which a director knows it; who asks needs the token itself", file)
	}
	return token, nil
}
