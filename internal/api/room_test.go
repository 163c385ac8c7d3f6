package api_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// mostConnections is what docs/reference/api.md says that each listener holds.
const mostConnections = 256

// hangs is how long a client waits until it is sure to be kept out: shorter than what idle
// connections may last.
const hangs = 30 * time.Second

// holder is a stranger's connection that stays open.
type holder struct {
	net.Conn
	read *bufio.Reader
}

// hold opens a connection from an address of this host; with TLS, if there is a configuration.
func hold(from string, to netip.AddrPort, config *tls.Config) (*holder, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: hangs}
	conn, err := dialer.Dial("tcp", to.String())
	if err == nil && config != nil {
		conn = tls.Client(conn, config)
	}
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(hangs))
	return &holder{conn, bufio.NewReader(conn)}, nil
}

// ask asks and keeps the connection.
func (h *holder) ask() (status int, err error) {
	request := httptest.NewRequest(http.MethodGet, "/v1/status", nil)
	request.Host = "127.0.0.1"
	if err := request.Write(h); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(h.read, request)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// Strangers that hold as many connections as there may be keep no known client out, and cut no
// answer short. The unix socket and the other listener know nothing of it.
func TestStrangersHoldAllConnections(t *testing.T) {
	r := startRemote(t)
	at := r.config.Listen[0]
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}
	config.RootCAs.AddCert(r.cert)

	streaming, cancel := context.WithCancel(t.Context())
	defer cancel()
	admin, err := api.NewRemoteClient(api.RemoteOptions{URL: "https://" + at.String(), CA: r.path("ca.pem"), TokenFile: r.write(t, "token", adminToken)})
	if err != nil {
		t.Fatal(err)
	}
	began, cut := make(chan struct{}, 10), make(chan error, 1)
	go func() {
		cut <- admin.Capture(streaming, model.Capture{Reasons: []string{"drop_no_backend"}}, func(*model.CaptureMessage) error {
			began <- struct{}{}
			return nil
		})
	}()
	select {
	case <-began:
	case err := <-cut:
		t.Fatalf("a client's answer ends at once with %v", err)
	}
	for kind, begun := range map[string]string{"without a word": "", "in the middle of a request": "GET /v1/status HTTP/1.1\r\n"} {
		var holding sync.WaitGroup
		for range mostConnections + 10 {
			holding.Go(func() {
				with := config
				if begun == "" {
					with = nil
				}
				h, err := hold("127.0.0.2", at, with)
				if err != nil {
					t.Errorf("a stranger's connection: %v", err)
					return
				}
				t.Cleanup(func() { h.Close() })
				_, _ = io.WriteString(h, begun) // the client that has to go reads the end of the connection
			})
		}
		holding.Wait()
		for range 20 { // each by a connection of its own
			ctx, end := context.WithTimeout(t.Context(), hangs)
			client, err := api.NewRemoteClient(api.RemoteOptions{URL: "https://" + at.String(), CA: r.path("ca.pem"), TokenFile: r.path("read")})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.Status(ctx); err != nil {
				t.Fatalf("while strangers hold all connections %s, a client hears: %v", kind, err)
			}
			end()
		}
	}
	select {
	case err := <-cut:
		t.Errorf("a client's answer, which does not end by itself, ends: %v", err)
	default:
		cancel()
		<-cut
	}

	socket := filepath.Join(t.TempDir(), "weir.sock")
	listener, err := api.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { _ = r.server.Serve(serving, listener) }()
	if _, err := api.NewClient(socket).Status(t.Context()); err != nil {
		t.Errorf("the socket: %v", err)
	}
	if status, err := must(hold("127.0.0.1", r.config.ReadOnly[0], nil)).ask(); err != nil || status != http.StatusOK {
		t.Errorf("the read-only listener: %d, %v", status, err)
	}
}

func must(h *holder, err error) *holder {
	if err != nil {
		panic(err)
	}
	return h
}

// At the address that is for everybody on this host, connections that wait for no answer
// have to go first: a client that holds them all keeps no other out.
func TestIdleConnectionsOfReadOnlyGo(t *testing.T) {
	r := startRemote(t)
	at := r.config.ReadOnly[0]
	for range mostConnections + 10 {
		h, err := hold("127.0.0.1", at, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		if status, err := h.ask(); err != nil || status != http.StatusOK {
			t.Fatalf("a connection hears %d, %v", status, err)
		}
	}
	client := http.Client{Timeout: hangs, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + at.String() + "/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(text), "version") {
		t.Errorf("it is answered with %s, %v", text, err)
	}
}
