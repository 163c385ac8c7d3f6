package api_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/api"
)

// refusals returns how often callers were refused for a cause, and what is said about it.
func (r *remote) refusals(cause string) (count uint64, said string) {
	for _, c := range r.remote.CountRefused() {
		if c.Name == cause {
			count = c.Count
		}
	}
	if err := r.remote.Refused(); err != nil {
		said = err.Error()
	}
	return count, said
}

// wantRefused waits until one caller more was refused for a cause, which is then said.
func (r *remote) wantRefused(t *testing.T, cause, want string, call func()) {
	t.Helper()
	before, _ := r.refusals(cause)
	call()
	count, said := before, ""
	for end := time.Now().Add(10 * time.Second); count == before && time.Now().Before(end); time.Sleep(time.Millisecond) { // between two looks
		count, said = r.refusals(cause)
	}
	if count != before+1 || said != want {
		t.Errorf("of %s it counts %d more and says\n%s\nwant 1 and\n%s", cause, count-before, said, want)
	}
}

// Callers that the API does not serve are counted by the cause, and named where the operator has to
// do something: their director's certificate is for another name or of a CA that they do not trust,
// their own is of another CA or no client's, or their token is wrong. Other files end it.
func TestRefusedCallersAreNamed(t *testing.T) {
	r := startRemote(t)
	other := newAuthority(t)
	other.issue(t, "team", "team.example.org")
	at := r.config.Listen[0]
	ask := func(url string, o api.RemoteOptions) error {
		o.URL = "https://" + url
		client, err := api.NewRemoteClient(o)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Services(t.Context())
		return err
	}
	token := r.path("kube")
	const certificate, clients = "clients refuse the certificate in api.cert: 127.0.0.1 ", "clients' certificates are refused by api.client-ca: 127.0.0.1 "
	r.wantRefused(t, "certificate", certificate+`(asks for "127.0.0.1": tls: bad certificate)`, func() {
		_ = ask(at.String(), api.RemoteOptions{CA: other.path("ca.pem"), TokenFile: token})
	})
	r.issue(t, "director", "director") // renewed
	r.set(t)
	r.wantRefused(t, "certificate", certificate+`(asks for "localhost", and it is for 127.0.0.1)`, func() {
		_ = ask(fmt.Sprintf("localhost:%d", at.Port()), api.RemoteOptions{CA: r.path("ca.pem"), TokenFile: token})
	})
	r.issue(t, "director", "director") // renewed
	r.set(t)
	r.wantRefused(t, "client_certificate", clients+`(the certificate of "team.example.org" is signed by another CA)`, func() {
		err := ask(at.String(), api.RemoteOptions{CA: r.path("ca.pem"), Cert: other.path("team.pem"), Key: other.path("team.key")})
		if err == nil || !strings.Contains(err.Error(), "unknown certificate authority") {
			t.Errorf("a client whose certificate is of another CA is told %v", err)
		}
	})
	r.config.ClientCA = other.path("ca.pem")
	r.set(t)
	if _, said := r.refusals("client_certificate"); said != "" {
		t.Errorf("with the CA of the clients it says %s", said)
	}
	if err := ask(at.String(), api.RemoteOptions{CA: r.path("ca.pem"), Cert: other.path("team.pem"), Key: other.path("team.key")}); err != nil {
		t.Errorf("with the CA of the clients one is told %v", err)
	}
	r.wantRefused(t, "unknown", "callers show a token or a certificate name that api.clients does not have: 127.0.0.1 (a token)", func() {
		r.asks(t, "Bearer none-0123456789abcdef", "GET", "/v1/services")
	})
	r.config.Clients = r.config.Clients[1:]
	r.set(t)
	r.wantRefused(t, "nothing_shown", "", func() { r.asks(t, "", "GET", "/v1/services") })
	r.wantRefused(t, "handshake", "", func() {
		conn, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	})
	r.wantRefused(t, "handshake", "", func() { _, _ = tls.Dial("tcp", at.String(), &tls.Config{MaxVersion: tls.VersionTLS12}) })
}
