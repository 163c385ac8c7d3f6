package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"weir.io/weir/internal/model"
)

// Bounds on a client's waits and memory.
const (
	clientTimeout = time.Minute
	lookTimeout   = 15 * time.Second // of questions that change nothing
	answerBytes   = 1 << 30
)

// Client asks a director or an agent. Its errors are those of the connection, or a Problem.
type Client struct {
	where string // a socket, or a URL
	base  string
	token string
	http  http.Client
	peer  *atomic.Int32 // the process that has the socket; 0: none is known

	// While is called when a question is sent, and its result when the answer comes; nil: not
	// wanted.
	While func() (done func())
}

// NewClient returns a client of the process that listens on the socket.
func NewClient(socket string) *Client {
	peer := new(atomic.Int32)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		dialer := net.Dialer{Timeout: dialTimeout}
		conn, err := dialer.DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		if other := peerOf(conn); other != nil {
			peer.Store(other.Pid)
		}
		return conn, nil
	}
	return &Client{
		where: socket, base: "http://weir", peer: peer,
		http: http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}},
	}
}

// Status returns what the director says about itself. An agent's answer is an error.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return statusOf[Status](ctx, c, RoleDirector)
}

// AgentStatus returns what an agent says about itself. A director's answer is an error.
func (c *Client) AgentStatus(ctx context.Context) (AgentStatus, error) {
	return statusOf[AgentStatus](ctx, c, RoleAgent)
}

// Role returns what the process that listens answers as.
func (c *Client) Role(ctx context.Context) (Role, error) {
	status, err := get[struct{ Role Role }](ctx, c, "status")
	return status.Role, err
}

// statusOf keeps one role's answer from being read as the other's.
func statusOf[T any](ctx context.Context, c *Client, want Role) (status T, err error) {
	text, err := get[json.RawMessage](ctx, c, "status")
	if err != nil {
		return status, err
	}
	var who struct{ Role Role }
	if err := json.Unmarshal(text, &who); err != nil {
		return status, fmt.Errorf("read the answer about status: %w", err)
	}
	if who.Role == "" {
		return status, unreachableError{fmt.Errorf("%s answers, and not as a weir director or agent does", c.where)}
	}
	if who.Role != want {
		return status, unreachableError{fmt.Errorf("%s is where a weir %s answers, not a weir %s", c.where, who.Role, want)}
	}
	if err := json.Unmarshal(text, &status); err != nil {
		return status, fmt.Errorf("read the answer about status: %w", err)
	}
	return status, nil
}

// Services returns the services as they are in the kernel.
func (c *Client) Services(ctx context.Context) ([]model.ServiceStatus, error) {
	return c.ServicesIn(ctx, nil)
}

// ServicesIn returns those whose VIPs are in a segment; nil: all.
func (c *Client) ServicesIn(ctx context.Context, in *model.Segment) ([]model.ServiceStatus, error) {
	return get[[]model.ServiceStatus](ctx, c, inSegment("services", in))
}

// Backends returns the backends of every service as they are in the kernel.
func (c *Client) Backends(ctx context.Context) ([]Backend, error) { return c.BackendsIn(ctx, nil) }

// BackendsIn returns those that are in a segment; nil: all.
func (c *Client) BackendsIn(ctx context.Context, in *model.Segment) ([]Backend, error) {
	return get[[]Backend](ctx, c, inSegment("backends", in))
}

// BGP returns what is announced to which neighbors.
func (c *Client) BGP(ctx context.Context) (model.BGPStatus, error) {
	return get[model.BGPStatus](ctx, c, "bgp")
}

// Directors returns what the directors of the group say about themselves.
func (c *Client) Directors(ctx context.Context) ([]model.DirectorRun, error) {
	return get[[]model.DirectorRun](ctx, c, "directors")
}

// Config returns the configuration that runs.
func (c *Client) Config(ctx context.Context) (model.Config, error) {
	return get[model.Config](ctx, c, "config")
}

func get[T any](ctx context.Context, c *Client, what string) (value T, err error) {
	_, err = c.ask(ctx, http.MethodGet, what, nil, nil, &value)
	return value, err
}

// ask sends a request and reads the answer into a value. The header is the answer's.
func (c *Client) ask(ctx context.Context, method, what string, header http.Header, body []byte, value any) (http.Header, error) {
	within := clientTimeout
	if method == http.MethodGet {
		within = lookTimeout
	}
	ctx, _, cancel := c.patience(ctx, within)
	defer cancel()
	if c.While != nil {
		defer c.While()()
	}
	response, err := c.send(ctx, method, what, header, body)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if err := json.NewDecoder(io.LimitReader(response.Body, answerBytes)).Decode(value); err != nil {
		return nil, c.readError(what, silence(ctx, err))
	}
	return response.Header, nil
}

// send sends a request within a context of patience, and returns the answer if that is good.
func (c *Client) send(ctx context.Context, method, what string, header http.Header, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+base+what, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask for %s: %w", what, err)
	}
	maps.Copy(request.Header, header)
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.connectError(silence(ctx, err))
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		return nil, c.problem(ctx, what, response, json.NewDecoder(io.LimitReader(response.Body, answerBytes)))
	}
	return response, nil
}

// post asks something about a value.
func post[T any](ctx context.Context, c *Client, what string, about any) (answer T, err error) {
	body, err := encode(about)
	if err != nil {
		return answer, err
	}
	_, err = c.ask(ctx, http.MethodPost, what, jsonHeader, body, &answer)
	return answer, err
}

var jsonHeader = http.Header{"Content-Type": {"application/json"}}

func encode(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write a request: %w", err)
	}
	return body, nil
}

// ErrUnreachable matches errors that say why no process could be asked.
var ErrUnreachable = errors.New("nobody could be asked")

// unreachableError keeps its own words.
type unreachableError struct{ error }

// Is is true of ErrUnreachable.
func (unreachableError) Is(target error) bool { return target == ErrUnreachable }

// Unwrap returns why.
func (e unreachableError) Unwrap() error { return e.error }

// connectError says what a failed connection means.
func (c *Client) connectError(err error) error { return unreachableError{c.wordConnectError(err)} }

func (c *Client) wordConnectError(err error) error {
	var silent *silentError
	switch {
	case errors.As(err, &silent):
		return fmt.Errorf("%s: %w", c.where, silent)
	case c.base == c.where:
		return fmt.Errorf("ask the director: %w", err) // it names the URL
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody listens on %s: start \"weir run\" or \"weir agent\", or name its --socket (%w)", c.where, root(err))
	case strings.Contains(err.Error(), "malformed HTTP"): // net/http has no error of its own for it
		return fmt.Errorf("%s does not answer as a weir director or agent does: only weir bfd status asks the BFD process's socket (%w)", c.where, err)
	case errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF):
		return fmt.Errorf("%s takes questions and does not answer as a weir director or agent does (%w)", c.where, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("may not use %s: be root or in its group (%w)", c.where, root(err))
	}
	return fmt.Errorf("ask on %s: %w", c.where, err)
}

// root returns the system's own error: the errors that wrap it repeat the socket.
func root(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// problem says what is wrong with a question. An agent lacks what only directors have.
func (c *Client) problem(ctx context.Context, what string, response *http.Response, body *json.Decoder) error {
	problem := readProblem(response, body)
	if response.StatusCode != http.StatusNotFound || what == "status" {
		return problem
	}
	if role, err := c.Role(ctx); err != nil || role != RoleAgent {
		return problem
	}
	what, _, _ = strings.Cut(what, "?")
	return unreachableError{fmt.Errorf("%s is where a weir agent answers, and only a director answers about %s: name a director's --socket", c.where, what)}
}

func readProblem(response *http.Response, body *json.Decoder) error {
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	problem := &Problem{}
	if media != problemType || body.Decode(problem) != nil {
		return &Problem{Title: response.Status, Status: response.StatusCode}
	}
	return problem
}

// RemoteOptions say how to ask a director over TCP.
type RemoteOptions struct {
	URL       string // https://HOST:PORT; http:// only on this host
	CA        string // PEM: CAs that may have signed its certificate; empty: the system's CAs
	Cert, Key string // PEM: of the client
	TokenFile string
	KeepAlive bool // one connection for several questions
}

// NewRemoteClient returns a client of the director at a URL.
func NewRemoteClient(o RemoteOptions) (*Client, error) {
	u, err := url.Parse(o.URL)
	secure := err == nil && u.Scheme == "https"
	if err != nil || u.Host == "" || !secure && (u.Scheme != "http" || !ownName(u.Host)) || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("%q is not https://HOST:PORT", o.URL)
	}
	t := &http.Transport{Proxy: nil, DisableKeepAlives: !o.KeepAlive, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13}}
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

// CloseIdle ends the connection that a client with KeepAlive has, if it asks nothing.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

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
