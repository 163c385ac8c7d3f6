package test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// fault is one way in which a backend is broken, and what weir says of it.
type fault struct {
	name   string
	health string // the rest of the check, in YAML
	serve  func(net.Listener)
	spoil  func()
	why    string // the reason that weir backends shows
}

// Servers are broken in every way that probes to their own addresses can find, and weir backends
// names the reason of each fault.
//
//	client --- router --- switch --- director
//	                             --- backend1
func TestBrokenBackendsAreNamed(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 1})
	host := l.backends[0]
	good, ca := selfSigned(t, "www.example.org")
	bad, ca2 := selfSigned(t, "mail.example.org")
	var ill atomic.Bool
	answer := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case ill.Load() && r.URL.Path == "/broken":
			http.Error(w, "sorry", http.StatusInternalServerError)
		case ill.Load() && r.URL.Path == "/slow":
			<-r.Context().Done()
		default:
			_, _ = io.WriteString(w, "ok\n")
		}
	}
	web := func(l net.Listener) {
		server := &http.Server{Handler: http.HandlerFunc(answer), ErrorLog: log.New(io.Discard, "", 0)}
		t.Cleanup(func() { server.Close() })
		go func() { _ = server.Serve(l) }()
	}
	certified := func(l net.Listener) {
		web(tls.NewListener(l, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if ill.Load() {
				return bad, nil
			}
			return good, nil
		}}))
	}
	idle := func(l net.Listener) { go accept(l, func(net.Conn) {}) }
	deaf := func(l net.Listener) net.Listener { return &deafListener{l, &ill, t.Context().Done()} }
	nothing := func() {}
	port := func(i int) string { return fmt.Sprint(8001 + i) }
	var listeners []net.Listener
	faults := []fault{
		{"wrong-port", "kind: tcp", idle, func() { listeners[0].Close() }, "refused: the port is closed: connection refused"},
		{"firewall", "kind: tcp", idle, func() {
			for _, rule := range []string{"add table inet test", "add chain inet test in { type filter hook input priority 0 ; }",
				"add rule inet test in tcp dport " + port(1) + " drop"} {
				on(t, host, "nft", rule)
			}
		}, "timeout: no answer to a SYN within 300ms: the host is gone, or something drops it"},
		{"tls-name", "kind: https\n    tls:\n      name: www.example.org\n      ca: |\n" + indented(ca+ca2, "        "), certified, nothing,
			"certificate: x509: certificate is valid for mail.example.org, not www.example.org"},
		{"http-500", "kind: http\n    http: {path: /broken}", web, nothing, "status: GET /broken was answered with 500 Internal Server Error"},
		{"slow", "kind: http\n    http: {path: /slow}", web, nothing, "timeout: connected, and no answer within 300ms"},
		{"half-open", "kind: http", func(l net.Listener) { web(deaf(l)) }, nothing, "timeout: connected, and no answer within 300ms"},
		{"half-open-tls", "kind: tls\n    tls: {skip-verify: true}", func(l net.Listener) { certified(deaf(l)) }, nothing,
			"timeout: connected, and the TLS handshake did not end within 300ms"},
	}
	var services []string
	for i, f := range faults {
		listener, err := host.Listen("tcp", net.JoinHostPort(lanAddress(backendHost, false).String(), port(i)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		listeners = append(listeners, listener)
		f.serve(listener)
		services = append(services, fmt.Sprintf(`- name: %s
  vip: 192.0.2.10
  protocol: tcp
  port: %s
  mode: gue
  health:
    interval: 50ms
    timeout: 300ms
    fall: 2
    panic: 0
    to: address
    %s
  backends: [{name: a, address: %s}]
`, f.name, port(i), f.health, lanAddress(backendHost, false)))
	}
	director := startDaemon(t, l.director, "run", configText("eth0", "", services...))
	all := func(state model.HealthState) bool {
		for _, b := range director.backends() {
			if b.Health == nil || b.Health.State != state {
				return false
			}
		}
		return true
	}
	director.waitFor("find all well", func() bool { return all(model.HealthUp) })
	ill.Store(true)
	for _, f := range faults {
		f.spoil()
	}
	director.waitFor("find none well", func() bool { return all(model.HealthDown) })
	shown := ""
	defer func() {
		if t.Failed() {
			t.Logf("weir backends says\n%s", shown)
		}
	}()
	for _, f := range faults {
		// Asked repeatedly: any probe may also fail because a server did not get the CPU in time.
		director.waitFor("say of "+f.name+" "+f.why, func() bool {
			shown = on(t, director.host, weir, "backends", f.name, "--socket", director.socket)
			return strings.Contains(shown, "  down  ") && strings.Contains(shown, "  "+f.why+"\n")
		})
	}
	if log := director.logged(); strings.Contains(log, "reason=local") {
		t.Errorf("the director takes failures for its own:\n%s", log)
	}
}

// deafListener accepts no connections while it is ill, until the test ends.
type deafListener struct {
	net.Listener
	ill   *atomic.Bool
	ended <-chan struct{}
}

func (l *deafListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil || !l.ill.Load() {
		return conn, err
	}
	<-l.ended
	conn.Close() // the connection for which it was waiting
	return nil, net.ErrClosed
}

// selfSigned is a certificate for a name, also as PEM text.
func selfSigned(t *testing.T, name string) (*tls.Certificate, string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private},
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func indented(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by)
}
