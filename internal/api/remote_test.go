package api_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// authority signs certificates.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	last int64

	lasts time.Duration // what it signs from now on
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir(), lasts: time.Hour}
	a.cert, a.key = a.issue(t, "ca", "ca")
	return a
}

// issue writes NAME.pem and NAME.key.
func (a *authority) issue(t *testing.T, file, name string) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a.last++
	template := &x509.Certificate{SerialNumber: big.NewInt(a.last), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(a.lasts), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	parent, signer := a.cert, a.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.ExtKeyUsage = true, true, nil
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, file+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	a.write(t, file+".key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})))
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func (a *authority) path(file string) string { return filepath.Join(a.dir, file) }

func (a *authority) write(t *testing.T, file, text string) string {
	t.Helper()
	if err := os.WriteFile(a.path(file), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return a.path(file)
}

// freePort returns a port of 127.0.0.1 that nobody had a moment ago.
func freePort(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// anySets keeps sets of anybody.
type anySets struct{}

func (anySets) List() []api.SetInfo { return nil }
func (anySets) Get(string) (api.Set, bool) {
	return api.Set{Tag: "t"}, true
}
func (anySets) Put(context.Context, string, api.SetText, api.Condition) (api.SetChange, error) {
	return api.SetChange{Tag: "t"}, nil
}
func (anySets) Documents(string) ([]model.Document, bool) { return nil, true }
func (anySets) Give(context.Context, string, []byte) (api.SetChange, error) {
	return api.SetChange{Tag: "t"}, nil
}
func (anySets) Plan(context.Context, api.PlanRequest) (api.Plan, error) {
	return api.Plan{SetChange: api.SetChange{Tag: "t"}}, nil
}

const (
	readToken, kubeToken, adminToken = "read-0123456789abcdef", "kube-0123456789abcdef", "admin-0123456789abcdef"
)

// remote is a director that is asked over TCP.
type remote struct {
	*authority
	server *api.Server
	remote *api.Remote
	config model.API
}

func startRemote(t *testing.T) *remote {
	t.Helper()
	a := newAuthority(t)
	a.issue(t, "director", "director")
	a.issue(t, "team", "team.example.org")
	a.issue(t, "stranger", "stranger.example.org")
	d := newDirector()
	server := api.NewServer(d, d, quiet())
	server.HandleSets(anySets{})
	server.HandleBGP(func() model.BGPStatus { return model.BGPStatus{} })
	server.HandleCapture(endless(make(chan string, 1)))
	server.HandleExplain(func(context.Context, model.Question) (model.Explanation, error) { return model.Explanation{}, nil })
	server.Handle("/metrics", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("up 1\n")) }))
	digest := sha256.Sum256([]byte(adminToken))
	r := &remote{authority: a, server: server, remote: api.NewRemote(server, quiet())}
	t.Cleanup(r.remote.Close)
	r.config = model.API{
		Listen: []netip.AddrPort{freePort(t)}, ReadOnly: []netip.AddrPort{freePort(t)},
		Cert: a.path("director.pem"), Key: a.path("director.key"), ClientCA: a.path("ca.pem"),
		Clients: []model.APIClient{
			{Name: "dashboard", Role: model.RoleRead, TokenFile: a.write(t, "read", readToken+"\n")},
			{Name: "kube", Role: model.RoleWrite, TokenFile: a.write(t, "kube", kubeToken)},
			{Name: "ops", Role: model.RoleAdmin, TokenFile: a.write(t, "admin", "sha256:"+hex.EncodeToString(digest[:])+"\n")},
			{Name: "team", Role: model.RoleWrite, Owner: "web", Certificate: "team.example.org"},
			{Name: "kube-2", Role: model.RoleWrite, Owner: "kube", Certificate: "kube.example.org"},
		},
	}
	r.set(t)
	return r
}

func (r *remote) set(t *testing.T) {
	t.Helper()
	if err := r.remote.Set(r.config); err != nil {
		t.Fatal(err)
	}
}

// asks sends a request with a token, or a certificate: what begins with @ names one.
func (r *remote) asks(t *testing.T, who, method, path string) *http.Response {
	t.Helper()
	return r.asksWith(t, who, method, path, nil)
}

// asksWith does so with more headers.
func (r *remote) asksWith(t *testing.T, who, method, path string, headers map[string]string) *http.Response {
	t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	config.RootCAs.AddCert(r.cert)
	request, err := http.NewRequestWithContext(t.Context(), method, "https://"+r.config.Listen[0].String()+path, strings.NewReader(`{"services": []}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	if file, is := strings.CutPrefix(who, "@"); is {
		file, token, both := strings.Cut(file, "+")
		if both {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		pair, err := tls.LoadX509KeyPair(r.path(file+".pem"), r.path(file+".key"))
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	} else if who != "" {
		request.Header.Set("Authorization", who)
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// client trusts the director, and shows nothing by itself.
func (r *remote) client(t *testing.T) *http.Client {
	t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}
	config.RootCAs.AddCert(r.cert)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, ExpectContinueTimeout: time.Minute}}
}

func TestRoles(t *testing.T) {
	r := startRemote(t)
	for _, test := range []struct {
		who, method, path string
		want              int
	}{
		{"Bearer " + readToken, "GET", "/v1/services", 200},
		{"bearer " + readToken, "GET", "/v1/sets/web", 200},
		{"Bearer " + readToken, "GET", "/metrics", 200},
		{"Bearer " + readToken, "GET", "/v1/openapi.json", 200},
		{"Bearer " + readToken, "PUT", "/v1/sets/web", 403},
		{"Bearer " + readToken, "PUT", "/v1/sets/dashboard", 403},
		{"Bearer " + readToken, "POST", "/v1/plan?owner=web", 403},
		{"Bearer " + readToken, "POST", "/v1/capture", 403},
		{"Bearer " + kubeToken, "POST", "/v1/capture", 403},
		{"Bearer " + kubeToken, "GET", "/v1/sets/web", 200},
		{"Bearer " + kubeToken, "PUT", "/v1/sets/kube", 200},
		{"Bearer " + kubeToken, "PUT", "/v1/sets/web", 403},
		{"Bearer " + kubeToken, "PUT", "/v1/sets/kube/documents", 403},
		{"Bearer " + adminToken, "PUT", "/v1/sets/kube/documents", 200},
		{"Bearer " + kubeToken, "PUT", "/v1/sets/", 404},
		{"Bearer " + kubeToken, "PUT", "/v1/sets/kube%2f..%2fweb", 403},
		{"Bearer " + kubeToken, "POST", "/v1/plan?owner=kube", 200},
		{"Bearer " + kubeToken, "POST", "/v1/plan?owner=web", 403},
		{"Bearer " + kubeToken, "POST", "/v1/plan?owner=kube&owner=web", 200},
		{"Bearer " + adminToken, "PUT", "/v1/sets/web", 200},
		{"@team", "PUT", "/v1/sets/web", 200},
		{"@team", "PUT", "/v1/sets/kube", 403},
		{"@team+" + kubeToken, "PUT", "/v1/sets/web", 403},
		{"@team+" + kubeToken, "PUT", "/v1/sets/kube", 200},
	} {
		if got := r.asks(t, test.who, test.method, test.path); got.StatusCode != test.want {
			t.Errorf("%s: %s %s gives %s, want %d", test.who, test.method, test.path, got.Status, test.want)
		}
	}
}

// An expired certificate is reported as a problem until it is renewed.
func TestCertificateEnds(t *testing.T) {
	r := startRemote(t)
	if err := r.remote.Problem(); err != nil {
		t.Errorf("with good certificates the problem is %v", err)
	}
	r.lasts = -time.Minute
	r.issue(t, "director", "director")
	r.set(t)
	if err := r.remote.Problem(); err == nil || !strings.Contains(err.Error(), "director.pem: the certificate has ended on") {
		t.Errorf("with one that has ended the problem is %v", err)
	}
	r.lasts = time.Hour
	r.issue(t, "director", "director")
	r.set(t)
	if err := r.remote.Problem(); err != nil {
		t.Errorf("with one that is renewed the problem is %v", err)
	}
}

func TestOnlyNewTLS(t *testing.T) {
	r := startRemote(t)
	config := &tls.Config{RootCAs: x509.NewCertPool(), MaxVersion: tls.VersionTLS12}
	config.RootCAs.AddCert(r.cert)
	if conn, err := tls.Dial("tcp", r.config.Listen[0].String(), config); err == nil {
		conn.Close()
		t.Error("TLS 1.2 is spoken")
	} else if !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2 is refused by %v", err)
	}
	response, err := http.Get("http://" + r.config.Listen[0].String() + "/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("without TLS it answers %s", response.Status)
	}
}

// A certificate of somebody else's authority is no credential.
func TestCertificateOfAnotherAuthority(t *testing.T) {
	r := startRemote(t)
	other := newAuthority(t)
	other.issue(t, "team", "team.example.org")
	pair, err := tls.LoadX509KeyPair(other.path("team.pem"), other.path("team.key"))
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{pair}}
	config.RootCAs.AddCert(r.cert)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	response, err := client.Get("https://" + r.config.Listen[0].String() + "/v1/status")
	if err == nil {
		response.Body.Close()
		if response.StatusCode != http.StatusUnauthorized {
			t.Errorf("it answers %s", response.Status)
		}
	}
}

func TestReadOnlyListener(t *testing.T) {
	r := startRemote(t)
	port := r.config.ReadOnly[0].Port()
	suppose := `{"with": {"owner": "web", "services": []}}`
	for _, test := range []struct {
		method, path, host string
		want               int
	}{
		{"POST", "/v1/explain", "", 200}, {"POST", "/v1/explain " + suppose, "", 403}, {"POST", "/v1/drain", "", 403},
		{"GET", "/v1/services", "", 200}, {"GET", "/metrics", "", 200}, {"GET", "/v1/sets/web", "", 200},
		{"PUT", "/v1/sets/web", "", 403}, {"POST", "/v1/plan?owner=web", "", 403}, {"POST", "/v1/capture", "", 403},
		{"GET", "/v1/services", fmt.Sprintf("localhost:%d", port), 200}, {"GET", "/v1/services", "[::1]", 200},
		{"GET", "/v1/services", "evil.example.org", 421}, {"GET", "/v1/services", "127.0.0.1.evil.example.org:80", 421},
	} {
		path, body, _ := strings.Cut(test.path, " ")
		request, err := http.NewRequestWithContext(t.Context(), test.method, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), strings.NewReader(cmp.Or(body, `{}`)))
		if err != nil {
			t.Fatal(err)
		}
		request.Host = test.host
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != test.want {
			t.Errorf("%s %s of host %q gives %s, want %d", test.method, test.path, test.host, response.Status, test.want)
		}
	}
}

// The files and the configuration change while connections are made.
func TestRemoteFollowsItsConfiguration(t *testing.T) {
	r := startRemote(t)
	status := func(who string) int { return r.asks(t, who, "GET", "/v1/services").StatusCode }
	const next = "another-0123456789abcdef"
	r.write(t, "read", next)
	r.issue(t, "director", "renewed")
	r.set(t)
	response := r.asks(t, "Bearer "+next, "GET", "/v1/services")
	if response.StatusCode != 200 || status("Bearer "+readToken) != 401 {
		t.Error("a token that was replaced is what counts")
	}
	if got := response.TLS.PeerCertificates[0].Subject.CommonName; got != "renewed" {
		t.Errorf("the director shows the certificate of %s", got)
	}
	// Errors are reported, and the earlier configuration goes on.
	for file, text := range map[string]string{"read": "short", "director.pem": "x"} {
		before, err := os.ReadFile(r.path(file))
		if err != nil {
			t.Fatal(err)
		}
		r.write(t, file, text)
		if err := r.remote.Set(r.config); err == nil || r.remote.Problem() == nil || strings.Contains(err.Error(), text+"\"") {
			t.Errorf("with a bad %s: %v", file, err)
		}
		if status("Bearer "+next) != 200 {
			t.Errorf("with a bad %s nobody is answered", file)
		}
		r.write(t, file, string(before))
	}
	r.set(t)
	if err := r.remote.Problem(); err != nil {
		t.Error(err)
	}
	gone := r.config.Listen[0].String()
	r.config.Listen = []netip.AddrPort{freePort(t)}
	r.set(t)
	if status("Bearer "+next) != 200 {
		t.Error("the new address does not answer")
	}
	if conn, err := net.Dial("tcp", gone); err == nil {
		conn.Close()
		t.Error("the old address still answers")
	}
	if err := r.remote.Set(model.API{}); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", r.config.ReadOnly[0].String()); err == nil {
		conn.Close()
		t.Error("without api somebody answers")
	}
}

func TestRemoteClient(t *testing.T) {
	r := startRemote(t)
	options := api.RemoteOptions{URL: "https://" + r.config.Listen[0].String(), CA: r.path("ca.pem"), TokenFile: r.path("kube")}
	client, err := api.NewRemoteClient(options)
	if err != nil {
		t.Fatal(err)
	}
	if services, err := client.Services(t.Context()); err != nil || len(services) != 2 {
		t.Errorf("the client reads %d services: %v", len(services), err)
	}
	for token, want := range map[string]string{r.path("stranger"): "no client of api.clients has the token that was shown", "": "show the token or the certificate of one of api.clients"} {
		if err := os.WriteFile(r.path("stranger"), []byte("nobody-has-this-token\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		stranger, err := api.NewRemoteClient(api.RemoteOptions{URL: options.URL, CA: options.CA, TokenFile: token})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stranger.Services(t.Context()); err == nil || err.Error() != want {
			t.Errorf("a stranger with the token %q is told %v, and not %q", token, err, want)
		}
	}
	if change, err := client.PutSet(t.Context(), "kube", api.SetText{Text: []byte("services: []\n")}, api.Condition{Tags: []string{"t"}}); err != nil || change.Tag != "t" {
		t.Errorf("the client puts %+v: %v", change, err)
	}
	if _, err := client.PutSet(t.Context(), "web", api.SetText{}, api.Condition{}); err == nil || err.Error() != `kube may write the set of owner "kube", and this is about that of owner "web"` {
		t.Errorf("the client may write another set: %v", err)
	}
	for _, url := range []string{"http://10.0.0.1:80", "https://", "ftp://127.0.0.1", "https://10.0.0.1/v2", "director"} {
		if _, err := api.NewRemoteClient(api.RemoteOptions{URL: url}); err == nil {
			t.Errorf("%q is asked", url)
		}
	}
	for text, says := range map[string]string{"": "is empty", "two\nsecrets": "more than one word", "sha256:00ab": "its digest"} {
		options.TokenFile = r.write(t, "wrong", text)
		if _, err := api.NewRemoteClient(options); err == nil || !strings.Contains(err.Error(), says) || text != "" && strings.Contains(err.Error(), text[:3]) {
			t.Errorf("of a token file with %q it says %v", text, err)
		}
	}
}

func (anySets) Drain(_ context.Context, d api.Drain) ([]api.Drained, error) {
	return []api.Drained{{Owner: d.Owner, Backend: d.Backend, Before: model.Active, State: d.State}}, nil
}
