package health

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"weir.io/weir/internal/model"
)

// The bounds on how much of an answer is read: a backend must not fill the director's memory.
const (
	mostHeader = 64 << 10
	mostBody   = 64 << 10
)

// newHTTP makes a probe that sends one request on a connection of its own. It follows no
// redirections: what they lead to may be another host.
func newHTTP(how *model.HealthCheck) (probe, error) {
	ask, err := newRequest(how.HTTP)
	if err != nil {
		return nil, err
	}
	return overTCP(ask.on), nil
}

// newHTTPS makes the same probe over TLS, in HTTP/1.1.
func newHTTPS(how *model.HealthCheck) (probe, error) {
	ask, err := newRequest(how.HTTP)
	if err != nil {
		return nil, err
	}
	return overTLS(how, ask.on, "http/1.1")
}

// request is the request to every backend of a service.
type request struct {
	how *model.HealthHTTP
	url *url.URL
}

func newRequest(how *model.HealthHTTP) (*request, error) {
	if how == nil {
		return nil, errors.New("there is no request")
	}
	u, err := url.ParseRequestURI(how.Path)
	if err != nil {
		return nil, err
	}
	return &request{how, u}, nil
}

// on sends the request on a connection and judges the answer.
func (r *request) on(_ context.Context, conn net.Conn, a *attempt) error {
	q := &http.Request{
		Method: r.how.Method, URL: r.url, Host: r.how.Host, ProtoMajor: 1, ProtoMinor: 1, Close: true,
		Header: http.Header{"User-Agent": {"weir-health"}, "Accept": {"*/*"}},
	}
	if q.Host == "" {
		q.Host = a.way.Target().String()
	}
	q.Header["X-Weir-Padding"] = padding(a)
	var text bytes.Buffer
	if err := q.Write(&text); err != nil {
		return err
	}
	if _, err := conn.Write(text.Bytes()); err != nil {
		return err
	}
	answer, err := r.answer(conn, q)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if !slices.ContainsFunc(r.how.Status, func(s model.StatusRange) bool { return s.Contains(answer.StatusCode) }) {
		return failure(Status, "%s %s was answered with %s", r.how.Method, r.how.Path, answer.Status)
	}
	return r.body(answer)
}

// mostPadding bounds one field: servers bound how long lines may be.
const mostPadding = 2000

// padding makes a request on the way of clients' packets longer than a packet, so that the longest
// packet that clients may send is sent. A request in short segments has it, too.
func padding(a *attempt) (fields []string) {
	for left := a.way.MTU; left > 0; left -= mostPadding {
		fields = append(fields, strings.Repeat("x", min(left, mostPadding)))
	}
	return fields
}

// answer reads the first answer that is a final one.
func (r *request) answer(conn net.Conn, q *http.Request) (*http.Response, error) {
	limited := &io.LimitedReader{R: conn, N: mostHeader + mostBody}
	reader := bufio.NewReader(limited)
	for {
		answer, err := http.ReadResponse(reader, q)
		if err != nil && limited.N <= 0 {
			return nil, failure(Malformed, "the header of the answer does not end within %d KiB", (mostHeader+mostBody)>>10)
		}
		if err != nil || answer.StatusCode >= 200 || answer.StatusCode == http.StatusSwitchingProtocols {
			return answer, err
		}
	}
}

func (r *request) body(answer *http.Response) error {
	if r.how.Body == "" {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, mostBody))
	if bytes.Contains(body, []byte(r.how.Body)) {
		return nil
	}
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return failure(Body, "the answer to %s %s (%s) does not contain %q", r.how.Method, r.how.Path, answer.Status, r.how.Body)
}
