package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// A browser on another host shows the live dashboard, over TLS 1.3, to a user whose name and token
// the director knows. Other users, and those whose token was replaced, see nothing.
//
//	director: weir run, api.listen 10.0.0.1:6083 --- backend: the browser
func TestDashboardFromAnotherHost(t *testing.T) {
	h := newHost(t)
	const listen = "10.0.0.1:6083"
	h.configure(strings.Replace(h.withAPI(t), "127.0.0.1:6083", listen, 1)+onEth0, "web")
	p := h.start("director runs")
	defer p.stop()
	pem, err := os.ReadFile(h.beside("api.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	browser := http.Client{Transport: &http.Transport{DialContext: h.backend.DialContext,
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}}} // as the certificate says
	defer browser.CloseIdleConnections()
	get := func(path, name, token string) (*http.Response, error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+listen+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if name != "" {
			request.SetBasicAuth(name, token)
		}
		return browser.Do(request)
	}
	hears := func(path, name, token string, want int) (body string) {
		t.Helper()
		response, err := get(path, name, token)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != want || response.TLS.Version != tls.VersionTLS13 {
			t.Errorf("%q hears %s of %s, want %d", name, response.Status, path, want)
		}
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		if csp := response.Header.Get("Content-Security-Policy"); path == "/" && want == http.StatusOK && !strings.Contains(csp, "default-src 'none'") {
			t.Errorf("the page's policy is %q", csp)
		}
		return string(text)
	}
	p.wait("answer there", func() bool {
		response, err := get("/", "", "")
		if err != nil {
			return false
		}
		response.Body.Close()
		return true
	})
	for _, path := range []string{"/", "/v1/live", "/v1/status", "/metrics", "/logout", "/assets"} {
		hears(path, "", "", http.StatusUnauthorized)
		hears(path, "ops", adminToken+"x", http.StatusUnauthorized)
		hears(path, "kube", adminToken, http.StatusUnauthorized)
	}
	if page := hears("/", "ops", adminToken, http.StatusOK); !strings.Contains(page, "<title>weir") {
		t.Errorf("the page is\n%s", page)
	}
	live, err := get("/v1/live", "ops", adminToken)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Body.Close()
	stream := bufio.NewReader(live.Body)
	for _, want := range []string{`"whole":true`, `"time":`} {
		for line := ""; !strings.HasPrefix(line, "data:") || !strings.Contains(line, want); {
			if line, err = stream.ReadString('\n'); err != nil {
				t.Fatalf("the live stream says nothing of %s: %v", want, err)
			}
		}
	}
	const next = "another-0123456789abcdef"
	if err := os.WriteFile(h.beside("admin"), []byte(next+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(stream) // until the director reads the token's file again
	t.Logf("with the token gone the stream has ended after %d bytes more", len(rest))
	hears("/", "ops", adminToken, http.StatusUnauthorized)
	hears("/", "ops", next, http.StatusOK)
	log := p.stderr.String()
	for _, secret := range []string{adminToken, next, "Basic "} {
		if strings.Contains(log, secret) || strings.Contains(hears("/v1/config", "ops", next, http.StatusOK), secret) {
			t.Errorf("%q is shown, or in the log:\n%s", secret, log)
		}
	}
}
