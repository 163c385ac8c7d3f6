package test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"weir.io/weir/lab/netlab"
)

// preferredWays are the ways whose VIP is in the servers' own network stack.
var preferredWays = []way{{mode: "l2dsr"}, {mode: "gue", inner6: true, outer6: true}}

// If a QUIC server gives its own address as the preferred one (RFC 9000, 9.6), the director sees
// only the handshake: the client goes on with the server itself, even when all directors are lost.
// A client that does not follow stays with the VIP, and is served.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2
//
// Client and server are ngtcp2's. quic-go neither announces such an address nor follows one.
func TestQUICPreferredAddress(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 2})
	const port = 443
	var services []string
	for _, w := range preferredWays {
		services = append(services, w.service("udp", fmt.Sprint(port), everyBackend(2)))
	}
	l.start(services...)
	content := make([]byte, 4<<20)
	rand.Read(content)
	for n, b := range l.backends {
		startPreferring(t, b, content, lanAddress(backendHost+n, false), lanAddress(backendHost+n, true), port)
	}
	for _, w := range preferredWays {
		t.Run(w.String(), func(t *testing.T) {
			t.Run("stays", func(t *testing.T) { l.getsByQUIC(t, w.vip(), port, content, false) })
			t.Run("quic-go stays", func(t *testing.T) { l.keepsQUIC(t, w.vip(), port) })
			t.Run("follows", func(t *testing.T) { l.getsByQUIC(t, w.vip(), port, content, true) })
		})
	}
}

// startPreferring runs an HTTP/3 server that serves one file, and prefers its own addresses.
func startPreferring(t *testing.T, h *netlab.Host, content []byte, own4, own6 netip.Addr, port uint16) {
	t.Helper()
	root := filepath.Join(h.Dir(), "h3")
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "file"), content, 0o644); err != nil {
		t.Fatal(err)
	}
	identity := quicServerTLS(t).Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(identity.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := write(t, h, "h3.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	certificate := write(t, h, "h3.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: identity.Certificate[0]})))
	startDatagramServer(t, h, port, "gtlsserver", "-q", "-d", root,
		fmt.Sprintf("--preferred-ipv4-addr=%s", netip.AddrPortFrom(own4, port)),
		fmt.Sprintf("--preferred-ipv6-addr=%s", netip.AddrPortFrom(own6, port)),
		"*", fmt.Sprint(port), keyFile, certificate)
}

// datagrams returns how many datagrams the client's host has sent to the VIP, and to other hosts.
func (l *lab) datagrams(t *testing.T, port uint16) (vip, others int) {
	t.Helper()
	text := on(t, l.client, "nft", "list", "table", "inet", "watch")
	for i, into := range []*int{&vip, &others} {
		name := []string{"vip", "others"}[i]
		found := regexp.MustCompile(`counter ` + name + ` \{\s+packets (\d+)`).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no counter %s in: %s", name, text)
		}
		*into, _ = strconv.Atoi(found[1])
	}
	return vip, others
}

// watch counts the client's datagrams from now on.
func (l *lab) watch(t *testing.T, vip netip.Addr, port uint16) {
	t.Helper()
	family := map[bool]string{false: "ip", true: "ip6"}[vip.Is6()]
	on(t, l.client, "nft", fmt.Sprintf(`table inet watch {
		counter vip {}
		counter others {}
		chain output { type filter hook output priority 0;
			udp dport %[1]d %[2]s daddr %[3]s counter name vip
			udp dport %[1]d %[2]s daddr != %[3]s counter name others
		}
	}`, port, family, vip))
	undo(t, l.client, "nft", "delete table inet watch")
}

// getsByQUIC downloads the file through the VIP. When a client that follows has moved to the server
// itself, no director is left.
func (l *lab) getsByQUIC(t *testing.T, vip netip.Addr, port uint16, content []byte, follow bool) {
	l.watch(t, vip, port)
	into := t.TempDir()
	options := []string{"-q", "--exit-on-all-streams-close", "--download=" + into}
	if follow {
		options = append(options, "--delay-stream=1s") // so that the whole file comes later
	} else {
		options = append(options, "--no-preferred-addr")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	client := l.client.Command(ctx, "gtlsclient", append(options, vip.String(), fmt.Sprint(port), "https://weir/file")...)
	var output strings.Builder
	client.Stdout, client.Stderr = &output, &output
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	if follow {
		waitFor(t, "the client to go on with the server itself", func() bool {
			_, others := l.datagrams(t, port)
			return others > 0
		})
		l.lose(t, vip)
	}
	if err := client.Wait(); err != nil {
		t.Fatalf("gtlsclient: %v\n%s", err, &output)
	}
	got, err := os.ReadFile(filepath.Join(into, "file"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(content) {
		t.Fatalf("%d bytes came that are not the file's %d", len(got), len(content))
	}
	switch vips, others := l.datagrams(t, port); {
	case follow && others < 10*vips:
		t.Errorf("%d datagrams were sent to the VIP and %d to the server itself: most should be", vips, others)
	case !follow && others > 0:
		t.Errorf("%d datagrams were sent to the server itself by a client that does not follow", others)
	}
}

// lose keeps packets to the VIP from all directors, until the test ends.
func (l *lab) lose(t *testing.T, vip netip.Addr) {
	t.Helper()
	family := map[bool]string{false: "ip", true: "ip6"}[vip.Is6()]
	on(t, l.router, "nft", fmt.Sprintf("table inet lost { chain raw { type filter hook prerouting priority raw; %s daddr %s drop\n}\n}", family, vip))
	undo(t, l.router, "nft", "delete table inet lost")
}

// undo runs a command when the test ends. The test's context is over then.
func undo(t *testing.T, h *netlab.Host, name string, args ...string) {
	t.Helper()
	t.Cleanup(func() {
		if out, err := h.Command(context.Background(), name, args...).CombinedOutput(); err != nil {
			t.Errorf("%s: %s %s: %v\n%s", h.Name, name, strings.Join(args, " "), err, out)
		}
	})
}

// keepsQUIC lets quic-go connect through the VIP and stay there.
func (l *lab) keepsQUIC(t *testing.T, vip netip.Addr, port uint16) {
	l.watch(t, vip, port)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	at := map[bool]string{false: "0.0.0.0:0", true: "[::]:0"}[vip.Is6()]
	client := quicTransport(t, l.client, at, nil)
	conn, err := client.Dial(ctx, net.UDPAddrFromAddrPort(netip.AddrPortFrom(vip, port)),
		&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h3"}}, &quic.Config{HandshakeIdleTimeout: 30 * time.Second})
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer func() { _ = conn.CloseWithError(0, "") }()
	// The server's control stream comes when the handshake is over.
	if _, err := conn.AcceptUniStream(ctx); err != nil {
		t.Fatalf("the server's first stream: %v", err)
	}
	if vips, others := l.datagrams(t, port); vips == 0 || others > 0 {
		t.Errorf("%d datagrams were sent to the VIP and %d to others", vips, others)
	}
}
