package api

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.io/weir/internal/model"
)

// Causes for which callers over TCP get no answer, or only a refusal.
const (
	refusedCertificate       = "certificate"        // the caller refuses api.cert
	refusedClientCertificate = "client_certificate" // the caller's certificate cannot be verified by api.client-ca
	refusedUnknown           = "unknown"            // no client has the token or the name in the certificate
	refusedNothing           = "nothing_shown"      // neither a token nor a certificate: so browsers begin
	refusedHandshake         = "handshake"          // the connection ended in the handshake, for another cause
)

// refusedCauses are all causes, each with what is wrong if callers are refused for it.
// Causes without a text also occur where all goes well.
var refusedCauses = []struct{ name, text, fix string }{
	{refusedCertificate, "clients refuse the certificate in api.cert", "give it the names and addresses that clients ask by, and let a CA sign it that they trust"},
	{refusedClientCertificate, "clients' certificates are refused by api.client-ca", "put the CA that has signed them into api.client-ca, or give the clients new certificates"},
	{refusedUnknown, "callers show a token or a certificate name that api.clients does not have", "see that api.clients has their tokens and the names in their certificates"},
	{refusedNothing, "", ""},
	{refusedHandshake, "", ""},
}

const (
	// mostRefused bounds how many addresses are named for a cause: anybody can be refused.
	mostRefused = 3
	// refusedLasts is how long a refusal is told after it was the last one of an address.
	refusedLasts = 5 * time.Minute
)

// refusals are which callers were refused lately, by the cause.
type refusals struct {
	mu     sync.Mutex
	now    func() time.Time
	counts map[string]uint64
	recent map[string][]refused
	more   map[string]time.Time // when an address was refused last that is not among the recent ones
}

// refused is an address that was refused for a cause. It keeps only the first thing that
// the address showed or asked for: the caller chooses that, and a problem whose text
// changes is told again each time.
type refused struct {
	from, what string
	last       time.Time
}

func newRefusals() *refusals {
	return &refusals{now: time.Now, counts: map[string]uint64{}, recent: map[string][]refused{}, more: map[string]time.Time{}}
}

// note remembers a refusal. The address may have a port.
func (r *refusals) note(cause, address, what string) {
	from := hostOf(address)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[cause]++
	list := r.recent[cause]
	at := slices.IndexFunc(list, func(one refused) bool { return one.from == from })
	switch {
	case at >= 0:
		list[at].last = r.now()
	case len(list) < mostRefused:
		r.recent[cause] = append(list, refused{from, what, r.now()})
	default:
		r.more[cause] = r.now()
	}
}

// forget drops the callers that were refused for a cause, because its reason has changed.
func (r *refusals) forget(cause string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.recent, cause)
	delete(r.more, cause)
}

// tally returns how often callers were refused for each cause.
func (r *refusals) tally() (all []model.Tallied) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cause := range refusedCauses {
		all = append(all, model.Tallied{Name: cause.name, Count: r.counts[cause.name]})
	}
	return all
}

// problem says for which causes callers were refused lately, and from where; nil: for none.
func (r *refusals) problem() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := func(last time.Time) bool { return r.now().Sub(last) >= refusedLasts }
	var all []error
	for _, cause := range refusedCauses {
		r.recent[cause.name] = slices.DeleteFunc(r.recent[cause.name], func(one refused) bool { return old(one.last) })
		if cause.text == "" || len(r.recent[cause.name]) == 0 {
			continue
		}
		var from []string
		for _, one := range r.recent[cause.name] {
			from = append(from, one.from+" ("+one.what+")")
		}
		slices.Sort(from)
		if last, is := r.more[cause.name]; is && !old(last) {
			from = append(from, "others")
		}
		all = append(all, &refusedError{cause.text + ": " + strings.Join(from, ", "), cause.fix})
	}
	return errors.Join(all...)
}

// refusedError is a cause for which callers are refused.
type refusedError struct{ text, fix string }

// Error names the callers' addresses.
func (e *refusedError) Error() string { return e.text }

// Fix says what to do about it.
func (e *refusedError) Fix() string { return e.fix }

// Refused says for which causes callers were refused in the last minutes, and from which addresses;
// nil: for none.
func (r *Remote) Refused() error { return r.refused.problem() }

// CountRefused returns how often callers were refused since the start, by the cause.
func (r *Remote) CountRefused() []model.Tallied { return r.refused.tally() }

// forgetRefused forgets refusals whose cause other files may have ended.
func (r *Remote) forgetRefused(before, now *access) {
	if before == nil {
		return
	}
	if !sameCertificate(before.certificate, now.certificate) {
		r.refused.forget(refusedCertificate)
	}
	if !bytes.Equal(before.clientCAs, now.clientCAs) {
		r.refused.forget(refusedClientCertificate)
	}
	if !maps.Equal(before.tokens, now.tokens) || !maps.Equal(before.names, now.names) {
		r.refused.forget(refusedUnknown)
	}
}

func sameCertificate(a, b *tls.Certificate) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Leaf.Equal(b.Leaf)
}

// noteUnknown notes a request of an unknown caller, and returns what it has shown; empty: nothing.
func (r *Remote) noteUnknown(request *http.Request) (shown string) {
	cause, what := refusedNothing, ""
	switch _, token, is := shownToken(request); {
	case is && token != "":
		cause, what, shown = refusedUnknown, "a token", "the token"
	case !is && request.TLS != nil && len(request.TLS.VerifiedChains) > 0:
		cause, what, shown = refusedUnknown, fmt.Sprintf("a certificate of %.64q", request.TLS.VerifiedChains[0][0].Subject.CommonName), "the name in the certificate"
	}
	r.refused.note(cause, request.RemoteAddr, what)
	return shown
}

// noteHandshake notes connections that have ended before the handshake was over. It is a server's
// ConnState.
func (r *Remote) noteHandshake(conn net.Conn, state http.ConnState) {
	over, is := conn.(*tls.Conn)
	if !is || state != http.StateClosed || over.ConnectionState().HandshakeComplete {
		return
	}
	cause, what := causeOf(over.Handshake(), askedFor(over), r.access.Load()) // it returns the error of the handshake that was
	r.refused.note(cause, conn.RemoteAddr().String(), what)
}

// askedFor is by which name or address a caller asks.
func askedFor(conn *tls.Conn) string {
	if name := conn.ConnectionState().ServerName; name != "" {
		return name
	}
	return hostOf(conn.LocalAddr().String())
}

// causeOf says why a handshake has failed. The text is the same each time.
func causeOf(err error, asked string, a *access) (cause, what string) {
	var remote *net.OpError
	var own *tls.CertificateVerificationError
	switch {
	case errors.As(err, &own):
		return refusedClientCertificate, whyUnverified(own)
	case errors.As(err, &remote) && remote.Op == "remote error" && slices.Contains(certificateAlerts, remote.Err.Error()):
		what = fmt.Sprintf("asks for %.64q: %v", asked, remote.Err)
		if a != nil && a.certificate != nil && a.certificate.Leaf.VerifyHostname(asked) != nil {
			what = fmt.Sprintf("asks for %.64q, and it is for %s", asked, namesOf(a.certificate.Leaf))
		}
		return refusedCertificate, what
	}
	return refusedHandshake, ""
}

// certificateAlerts are what a caller sends that refuses a certificate (RFC 8446, section 6.2):
// bad_certificate, unsupported_certificate, certificate_revoked, certificate_expired,
// certificate_unknown and unknown_ca. crypto/tls has its own unexported type for them, with the
// texts of AlertError.
var certificateAlerts = alertTexts(42, 43, 44, 45, 46, 48)

func alertTexts(alerts ...tls.AlertError) (texts []string) {
	for _, a := range alerts {
		texts = append(texts, a.Error())
	}
	return texts
}

// whyUnverified says what is wrong with a caller's certificate, without the present time.
func whyUnverified(err *tls.CertificateVerificationError) string {
	name := "its certificate"
	if len(err.UnverifiedCertificates) > 0 {
		name = fmt.Sprintf("the certificate of %.64q", err.UnverifiedCertificates[0].Subject.CommonName)
	}
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return name + " is signed by another CA"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return name + " has ended or has not begun"
	}
	return fmt.Sprintf("%s: %.128v", name, err.Err) // the certificate may be quoted there
}

// namesOf are the names and addresses that a certificate is for.
func namesOf(c *x509.Certificate) string {
	names := slices.Clone(c.DNSNames)
	for _, a := range c.IPAddresses {
		names = append(names, a.String())
	}
	if len(names) == 0 {
		return "no name and no address (subjectAltName)"
	}
	return model.Some(names)
}
