package health

import (
	"crypto/md5"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// versions serves all versions of HTTP, over TLS where there is a certificate.
func (s servers) versions(address string, certificate *tls.Certificate) {
	s.t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s in %s for %s", r.Method, r.URL.Path, r.Proto, r.Host)
	})
	mux.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "all is well\n") })
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", mostHashed)) })
	mux.HandleFunc("/larger", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", mostHashed+1)) })
	mux.HandleFunc("/late", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strings.Repeat("x", mostBody)+"all is well")
	})
	mux.HandleFunc("/ill", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "sorry", http.StatusServiceUnavailable) })
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	var all http.Protocols
	all.SetHTTP1(true)
	all.SetHTTP2(true)
	all.SetUnencryptedHTTP2(true)
	// Without the mux, which answers CONNECT by redirections.
	server := &http.Server{Protocols: &all, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect && r.RequestURI != "tunnel.example:25" {
			http.Error(w, r.RequestURI, http.StatusForbidden)
			return
		}
		if r.Method != http.MethodConnect {
			mux.ServeHTTP(w, r)
		}
	})}
	l := s.listen(address)
	if certificate != nil {
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*certificate}, NextProtos: []string{"h2", "http/1.1"}})
	}
	s.t.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(l) }()
}

// Requests of all methods and versions arrive as such, and the answers' bodies are judged.
func TestRequests(t *testing.T) {
	director, s := newLab(t)
	ca := newAuthority(t)
	certificate := ca.sign("www.example.org")
	s.versions("10.0.0.2:80", nil)
	s.versions("10.0.0.2:443", certificate)
	s.http("10.0.0.2:444", certificate) // without HTTP/2
	s.http("10.0.0.2:81", nil)
	type requests = []model.HealthRequest
	sum256 := model.Digest(fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("all is well\n"))))
	sum5 := model.Digest(fmt.Sprintf("md5:%x", md5.Sum([]byte("all is well\n"))))
	large := model.Digest(fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(strings.Repeat("x", mostHashed)))))
	for _, test := range []struct {
		name   string
		port   int
		http   model.HealthHTTP
		want   Reason
		detail string
	}{
		{"1.0", 80, model.HealthHTTP{Version: model.HTTP10, HealthRequest: model.HealthRequest{Body: "in HTTP/1.0 for 10.0.0.2:80"}}, well, ""},
		{"1.1", 80, model.HealthHTTP{Version: model.HTTP11, HealthRequest: model.HealthRequest{Body: "in HTTP/1.1 for"}}, well, ""},
		{"no version", 80, model.HealthHTTP{HealthRequest: model.HealthRequest{Body: "in HTTP/1.1 for"}}, well, ""},
		{"2", 80, model.HealthHTTP{Version: model.HTTP2, HealthRequest: model.HealthRequest{Host: "www.example.org", Body: "in HTTP/2.0 for www.example.org"}}, well, ""},
		{"2, status", 80, model.HealthHTTP{Version: model.HTTP2, HealthRequest: model.HealthRequest{Path: "/ill"}}, Status, "GET /ill was answered with 503"},
		{"2, slow", 80, model.HealthHTTP{Version: model.HTTP2, HealthRequest: model.HealthRequest{Path: "/slow"}}, Timeout, "connected, and no answer within"},
		{"2, of a server without it", 81, model.HealthHTTP{Version: model.HTTP2}, Malformed, ""},
		{"2 over TLS", 443, model.HealthHTTP{Version: model.HTTP2, HealthRequest: model.HealthRequest{Body: "in HTTP/2.0"}}, well, ""},
		{"2 over TLS, of a server without it", 444, model.HealthHTTP{Version: model.HTTP2}, Malformed, "ALPN h2"},
		{"1.0 over TLS", 443, model.HealthHTTP{Version: model.HTTP10, HealthRequest: model.HealthRequest{Body: "in HTTP/1.0"}}, well, ""},
		{"1.1 over TLS", 443, model.HealthHTTP{HealthRequest: model.HealthRequest{Body: "in HTTP/1.1"}}, well, ""},

		{"CONNECT", 80, model.HealthHTTP{HealthRequest: model.HealthRequest{Method: "CONNECT", Host: "tunnel.example:25"}}, well, ""},
		{"CONNECT in 2", 80, model.HealthHTTP{Version: model.HTTP2, HealthRequest: model.HealthRequest{Method: "CONNECT", Host: "tunnel.example:25"}}, well, ""},
		{"CONNECT, refused", 80, model.HealthHTTP{HealthRequest: model.HealthRequest{Method: "CONNECT", Host: "other.example:25"}}, Status, "CONNECT other.example:25 was answered with 403"},
		{"HEAD", 80, model.HealthHTTP{HealthRequest: model.HealthRequest{Method: "HEAD"}}, well, ""},

		{"regexp", 80, model.HealthHTTP{HealthRequest: model.HealthRequest{Path: "/page", BodyRegexp: `(?m)^all (is|was) well$`}}, well, ""},
		{"other regexp", 80, model.HealthHTTP{HealthRequest: model.HealthRequest{Path: "/page", BodyRegexp: `^well`}}, Body, `the answer to GET /page (200 OK) has nothing that matches "^well"`},
		{"regexp beyond the bound", 80, model.HealthHTTP{HealthRequest: model.HealthRequest{Path: "/late", BodyRegexp: "well"}}, Body, "has nothing that matches"},
		{"sha256", 80, model.HealthHTTP{HealthRequest: model.HealthRequest{Path: "/page", Digest: sum256}}, well, ""},
		{"md5", 80, model.HealthHTTP{HealthRequest: model.HealthRequest{Path: "/page", Digest: sum5}}, well, ""},
		{"other digest", 80, model.HealthHTTP{HealthRequest: model.HealthRequest{Path: "/", Digest: sum5}}, Body, "the answer to GET / (200 OK) has the digest md5:"},
		{"digest of the largest body", 80, model.HealthHTTP{HealthRequest: model.HealthRequest{Path: "/large", Digest: large}}, well, ""},
		{"digest of a larger body", 80, model.HealthHTTP{HealthRequest: model.HealthRequest{Path: "/larger", Digest: large}}, Body, "is longer than 1024 KiB"},
		{"digest in 2", 80, model.HealthHTTP{Version: model.HTTP2, HealthRequest: model.HealthRequest{Path: "/page", Digest: sum256}}, well, ""},

		{"several", 80, model.HealthHTTP{HealthRequest: model.HealthRequest{Host: "www.example.org"}, Requests: requests{
			{Path: "/page", Digest: sum5}, {Path: "/a", Body: "GET /a in HTTP/1.1 for www.example.org"}, {Path: "/b", Method: "POST", Host: "b.example", Body: "POST /b in HTTP/1.1 for b.example"},
			{Path: "/ill", Status: []model.StatusRange{{First: 503, Last: 503}}}}}, well, ""},
		{"one of several fails", 80, model.HealthHTTP{Requests: requests{{Path: "/page"}, {Path: "/ill"}, {Path: "/a"}}}, Status, "GET /ill was answered with 503"},
		{"one of several is slow", 80, model.HealthHTTP{Requests: requests{{Path: "/page"}, {Path: "/slow"}, {Path: "/a"}}}, Timeout, "GET /slow: connected, and no answer within"},
		{"several over TLS, for different names", 443, model.HealthHTTP{Requests: requests{{Path: "/page", Host: "www.example.org"}, {Path: "/page", Host: "other.example.org"}}},
			Certificate, "GET /page: x509: certificate is valid for www.example.org, not other.example.org"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			how := model.HealthCheck{Kind: model.CheckHTTP, HTTP: &test.http}
			if test.port > 400 {
				how.Kind, how.TLS = model.CheckHTTPS, &model.HealthTLS{CA: ca.pem()}
				if len(test.http.Requests) == 0 {
					how.TLS.Name = "www.example.org"
				}
			}
			timeout := patience
			if test.want == Timeout {
				timeout = patience / 10
			}
			checkFailure(t, probing{how: how, to: fmt.Sprintf("10.0.0.2:%d", test.port)}.from(t, director, timeout), test.want, test.detail)
		})
	}
	for _, method := range []string{"GET", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE"} {
		for _, version := range []model.HTTPVersion{model.HTTP10, model.HTTP11, model.HTTP2} {
			how := model.HealthCheck{Kind: model.CheckHTTP, HTTP: &model.HealthHTTP{Version: version, HealthRequest: model.HealthRequest{Method: method, Path: "/x", Body: method + " /x in HTTP/" + string(version)}}}
			checkFailure(t, probing{how: how, to: "10.0.0.2:80"}.from(t, director, patience), well, "")
		}
	}
}

// The padding of a request fills a packet in each version of HTTP.
func TestPaddingDiffers(t *testing.T) {
	a := &attempt{way: model.Way{MTU: 9000}}
	fields, all := padding(a), 0
	for i, f := range fields {
		if all += len(f); i > 0 && f == fields[i-1] {
			t.Errorf("field %d is the one before: HTTP/2 sends one byte for it", i)
		}
	}
	if all != 9000 {
		t.Errorf("the padding has %d bytes, want 9000", all)
	}
}
