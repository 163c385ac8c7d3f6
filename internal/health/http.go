package health

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"weir.io/weir/internal/model"
)

// The bounds on how much of an answer is read: a backend must not fill the director's memory. What is
// hashed is not kept.
const (
	mostHeader = 64 << 10
	mostBody   = 64 << 10
	mostHashed = 1 << 20
)

// newHTTP makes a probe that sends each request on a connection of its own, one after the other. It
// follows no redirections: what they lead to may be another host.
func newHTTP(how *model.HealthCheck) (probe, error) {
	return newRequests(how, func(r *request) (probe, error) { return overTCP(r.on), nil })
}

// newHTTPS makes the same probe over TLS.
func newHTTPS(how *model.HealthCheck) (probe, error) {
	return newRequests(how, func(r *request) (probe, error) {
		config, err := tlsConfig(how)
		if err != nil {
			return nil, err
		}
		config.ServerName = how.ServerNameFor(r.how.Host)
		switch r.version {
		case model.HTTP11:
			config.NextProtos = []string{"http/1.1"}
		case model.HTTP2:
			config.NextProtos = []string{"h2"}
		}
		return with(config, r.on), nil
	})
}

// newRequests makes one probe of all requests of a check.
func newRequests(how *model.HealthCheck, over func(*request) (probe, error)) (probe, error) {
	if how.HTTP == nil {
		return nil, errors.New("there is no request")
	}
	list := how.HTTP.All()
	probes := make([]probe, len(list))
	for i := range list {
		r, err := newRequest(&list[i], cmp.Or(how.HTTP.Version, model.HTTP11))
		if err != nil {
			return nil, err
		}
		if probes[i], err = over(r); err != nil {
			return nil, err
		}
	}
	if len(probes) == 1 {
		return probes[0], nil
	}
	return func(ctx context.Context, a *attempt) error {
		for i, p := range probes {
			if err := p(ctx, a); err != nil {
				return ofRequest(&list[i], explain(err, a.at, a.timeout))
			}
		}
		return nil
	}, nil
}

// ofRequest says which of several requests has failed, where the failure does not say it itself.
func ofRequest(r *model.HealthRequest, f *Failure) error {
	what := named(r)
	if strings.Contains(f.Detail, what) {
		return f
	}
	return failure(f.Reason, "%s: %s", what, f.Detail)
}

// named is a request in a failure.
func named(r *model.HealthRequest) string {
	if r.Method == http.MethodConnect {
		return r.Method + " " + cmp.Or(r.Host, "the backend")
	}
	return r.Method + " " + r.Path
}

// request is a request to every backend of a service.
type request struct {
	how     *model.HealthRequest
	version model.HTTPVersion
	url     *url.URL
	body    *regexp.Regexp // nil: none
	digest  func() hash.Hash
	want    string // the digest's digits
}

func newRequest(how *model.HealthRequest, version model.HTTPVersion) (r *request, err error) {
	r = &request{how: how, version: version}
	if r.url, err = url.ParseRequestURI(how.Path); err != nil {
		return nil, err
	}
	if how.BodyRegexp != "" {
		if r.body, err = regexp.Compile(how.BodyRegexp); err != nil {
			return nil, err
		}
	}
	if how.Digest != "" {
		var name string
		name, r.want = how.Digest.Parts()
		if r.digest = digests[name]; r.digest == nil {
			return nil, fmt.Errorf("%q is not a hash", name)
		}
	}
	return r, nil
}

// digests are the hashes of bodies. MD5 tells a page from another one that nobody has made to have the same
// hash: it is for files of keepalived's.
var digests = map[string]func() hash.Hash{"md5": md5.New, "sha256": sha256.New}

// on sends the request on a connection and judges the answer.
func (r *request) on(ctx context.Context, conn net.Conn, a *attempt) error {
	q := (&http.Request{
		Method: r.how.Method, URL: r.url, Host: r.how.Host, ProtoMajor: 1, ProtoMinor: 1, Close: true,
		Header: http.Header{"User-Agent": {"weir-health"}, "Accept": {"*/*"}},
	}).WithContext(ctx)
	if q.Host == "" {
		q.Host = a.way.Target().String()
	}
	if r.how.Method == http.MethodConnect {
		q.URL = &url.URL{Host: q.Host} // RFC 9110, section 9.3.6: the target is a host and a port
	}
	q.Header["X-Weir-Padding"] = padding(a)
	send := r.over1
	if r.version == model.HTTP2 {
		send = r.over2
	}
	answer, err := send(conn, q)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if !slices.ContainsFunc(r.how.Status, func(s model.StatusRange) bool { return s.Contains(answer.StatusCode) }) {
		return failure(Status, "%s was answered with %s", named(r.how), answer.Status)
	}
	return r.judge(answer)
}

// mostPadding bounds one field: servers bound how long lines may be.
const mostPadding = 2000

// padding makes a request on the way of clients' packets longer than a packet, so that the longest
// packet that clients may send is sent. A request in short segments has it, too. In HTTP/2 an X takes a
// byte as well, and a field that differs from the one before is not left out (RFC 7541).
func padding(a *attempt) (fields []string) {
	for left := a.way.MTU; left > 0; left -= mostPadding {
		text := fmt.Sprint(len(fields)) + strings.Repeat("X", min(left, mostPadding))
		fields = append(fields, text[:min(left, mostPadding)])
	}
	return fields
}

// over1 sends a request in HTTP/1, and returns the first answer that is a final one.
func (r *request) over1(conn net.Conn, q *http.Request) (*http.Response, error) {
	var text bytes.Buffer
	if err := q.Write(&text); err != nil {
		return nil, err
	}
	line := text.Bytes()
	if r.version == model.HTTP10 { // which the library does not write
		line = bytes.Replace(line, []byte(" HTTP/1.1\r\n"), []byte(" HTTP/1.0\r\n"), 1)
	}
	if _, err := conn.Write(line); err != nil {
		return nil, err
	}
	most := int64(mostHeader + mostBody)
	if r.digest != nil {
		most += mostHashed
	}
	limited := &io.LimitedReader{R: conn, N: most}
	reader := bufio.NewReader(limited)
	for {
		answer, err := http.ReadResponse(reader, q)
		if err != nil && limited.N <= 0 {
			return nil, failure(Malformed, "the header of the answer does not end within %d KiB", most>>10)
		}
		if err != nil || answer.StatusCode >= 200 || answer.StatusCode == http.StatusSwitchingProtocols {
			return answer, err
		}
	}
}

// over2 sends a request in HTTP/2: over TLS as agreed in the handshake, else without asking (prior
// knowledge).
func (r *request) over2(conn net.Conn, q *http.Request) (*http.Response, error) {
	dial := func(context.Context, string, string) (net.Conn, error) { return conn, nil }
	client := &http.Transport{DialContext: dial, DialTLSContext: dial, Protocols: new(http.Protocols), MaxResponseHeaderBytes: mostHeader}
	u := *q.URL
	u.Scheme, u.Host = "http", q.Host
	if secure, is := conn.(*tls.Conn); is {
		if secure.ConnectionState().NegotiatedProtocol != "h2" {
			return nil, failure(Malformed, "the server does not agree on HTTP/2 (ALPN h2) in the TLS handshake")
		}
		u.Scheme = "https"
		client.Protocols.SetHTTP2(true)
	} else {
		client.Protocols.SetUnencryptedHTTP2(true)
	}
	q.URL = &u
	answer, err := client.RoundTrip(q)
	if err != nil && q.Context().Err() != nil {
		err = q.Context().Err()
	}
	return answer, err
}

// judge says whether the body of an answer is a good one.
func (r *request) judge(answer *http.Response) error {
	if r.how.Body == "" && r.body == nil && r.digest == nil {
		return nil
	}
	begins, err := io.ReadAll(io.LimitReader(answer.Body, mostBody))
	found := ""
	switch {
	case r.how.Body != "" && !bytes.Contains(begins, []byte(r.how.Body)):
		found = fmt.Sprintf("does not contain %q", r.how.Body)
	case r.body != nil && !r.body.Match(begins):
		found = fmt.Sprintf("has nothing that matches %q", r.how.BodyRegexp)
	case r.digest == nil:
		return nil
	case err == nil:
		found, err = r.differs(begins, answer.Body)
	}
	if found == "" && err == nil {
		return nil
	}
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return failure(Body, "the answer to %s (%s) %s", named(r.how), answer.Status, cmp.Or(found, "ends too early"))
}

// differs says how the digest of a body, whose beginning is given, differs from what it should be.
func (r *request) differs(begins []byte, rest io.Reader) (how string, err error) {
	sum := r.digest()
	sum.Write(begins)
	n, err := io.Copy(sum, io.LimitReader(rest, mostHashed-mostBody+1))
	if err != nil {
		return "", err
	}
	if n > mostHashed-mostBody {
		return fmt.Sprintf("is longer than %d KiB, so it has no digest", mostHashed>>10), nil
	}
	if digits := hex.EncodeToString(sum.Sum(nil)); digits != r.want {
		name, _ := r.how.Digest.Parts()
		return "has the digest " + name + ":" + digits, nil
	}
	return "", nil
}
