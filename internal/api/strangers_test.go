package api_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// A caller without a valid credential gets the same answer for every path and method, even
// for those that do not exist.
func TestStrangersHearNothing(t *testing.T) {
	r := startRemote(t)
	text, err := r.server.Document()
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	paths := []string{"/", "/logout", "/metrics", "/v1/openapi.json", "/v1/none", "/v1//status", "/v1/sets/../status"}
	for path := range document.Paths {
		paths = append(paths, strings.ReplaceAll(path, "{owner}", "web"))
	}
	for i, path := range paths {
		method := []string{"GET", "PUT", "POST", "DELETE", "OPTIONS", "TRACE"}[i%6]
		for _, who := range []string{"", "Bearer ", "Bearer " + readToken + "x", "Basic " + readToken, basic("ops", readToken), "@stranger", "@team+wrong"} {
			for _, m := range []string{method, "GET"} {
				got := r.asks(t, who, m, path)
				if got.StatusCode != http.StatusUnauthorized || got.Header.Get("Content-Type") != "application/problem+json" || got.Header.Get("WWW-Authenticate") == "" {
					t.Errorf("%q: %s %s gives %s", who, m, path, got.Status)
				}
			}
		}
	}
}

// The answers of net/http itself give nothing away: a malformed request has its status, and
// every other request gets 401.
func TestStrangersHearNothingElse(t *testing.T) {
	r := startRemote(t)
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}
	config.RootCAs.AddCert(r.cert)
	for _, test := range []struct {
		text string
		want int
	}{
		{"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 401},
		{"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 401},
		{"GET http://elsewhere/v1/status HTTP/1.1\r\nHost: x\r\n\r\n", 401},
		{"CONNECT 10.0.0.1:443 HTTP/1.1\r\nHost: x\r\n\r\n", 401},
		{"GET /v1/status HTTP/1.0\r\n\r\n", 401},
		{"GET /v1/status HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n\r\n", 401},
		{"PUT /v1/sets/web HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n", 401},
		{"GET /v1/status HTTP/1.1\r\nHost: x\r\nExpect: more\r\n\r\n", 417},
		{"GET /v1/status HTTP/1.1\r\n\r\n", 400}, // no Host
		{"GET /v1/status HTTP/3.0\r\nHost: x\r\n\r\n", 505},
		{"GET /v1/status HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 1<<16) + "\r\n\r\n", 431},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 401},
		{"nonsense\r\n\r\n", 400},
	} {
		conn, err := tls.Dial("tcp", r.config.Listen[0].String(), config)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(test.text)) // it may be cut short
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || response.StatusCode != test.want {
			t.Errorf("%.60q is answered with %+v, %v; want %d", test.text, response, err, test.want)
		} else if text, _ := io.ReadAll(response.Body); strings.Contains(string(text), "weir.yaml") {
			t.Errorf("%.60q says %s", test.text, text)
		}
		conn.Close()
	}
}
