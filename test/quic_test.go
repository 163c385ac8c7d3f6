package test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/quiclb"
)

// quicWay is how servers make their connection IDs.
type quicWay struct {
	name string
	port uint16
	quiclb.Config
	serverIDs [2]string // of backend1 and backend2
	without   bool      // the service does not declare the format
}

var quicWays = []quicWay{
	{name: "plaintext", port: 441, serverIDs: [2]string{"c4605e", "c4605f"},
		Config: quiclb.Config{ID: 0, ServerIDLength: 3, NonceLength: 5}},
	{name: "single pass", port: 442, serverIDs: [2]string{"c46060", "c46061"},
		Config: quiclb.Config{ID: 1, ServerIDLength: 3, NonceLength: 13, Key: bytes.Repeat([]byte{0x5a}, 16)}},
	{name: "four passes", port: 443, serverIDs: [2]string{"00000001", "00000002"},
		Config: quiclb.Config{ID: 6, ServerIDLength: 4, NonceLength: 5, Key: bytes.Repeat([]byte{0xa5}, 16)}},
	{name: "not declared", port: 444, serverIDs: [2]string{"c4605e", "c4605f"},
		Config: quiclb.Config{ID: 0, ServerIDLength: 3, NonceLength: 5}, without: true},
}

// service returns the text of a service. Services that declare anything declare all configurations.
func (q quicWay) service(w way) string {
	text := w.service("udp", fmt.Sprint(q.port), everyBackend(2))
	if q.without {
		return text
	}
	for i := range q.serverIDs {
		var ids []string
		for _, other := range quicWays {
			if !other.without {
				ids = append(ids, fmt.Sprintf("%d: %q", other.ID, other.serverIDs[i]))
			}
		}
		name := fmt.Sprintf("{name: backend%d, ", i+1)
		text = strings.Replace(text, name, name+"server-id: {"+strings.Join(ids, ", ")+"}, ", 1)
	}
	text += "  quic:\n"
	for _, other := range quicWays {
		if other.without {
			continue
		}
		text += fmt.Sprintf("  - {id: %d, nonce-length: %d", other.ID, other.NonceLength)
		if other.Key != nil {
			text += fmt.Sprintf(", key: %q", hex.EncodeToString(other.Key))
		}
		text += "}\n"
	}
	return text
}

// connectionIDs lets quic-go use the connection IDs that quiclb makes.
type connectionIDs struct {
	*quiclb.Generator
	length int
}

func (c connectionIDs) GenerateConnectionID() (quic.ConnectionID, error) {
	id, err := c.Generate()
	if err != nil {
		return quic.ConnectionID{}, err
	}
	return quic.ConnectionIDFromBytes(id), nil
}

func (c connectionIDs) ConnectionIDLen() int { return c.length }

func (q quicWay) connectionIDs(t *testing.T, serverID string) connectionIDs {
	t.Helper()
	codec, err := quiclb.New(q.Config)
	if err != nil {
		t.Fatal(err)
	}
	id, err := hex.DecodeString(serverID)
	if err != nil {
		t.Fatal(err)
	}
	g, err := quiclb.NewGenerator(codec, id)
	if err != nil {
		t.Fatal(err)
	}
	return connectionIDs{g, codec.Length()}
}

func quicServerTLS(t *testing.T) *tls.Config {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"weir"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}, NextProtos: []string{"echo"}}
}

// quicTransport is a socket on a host that speaks QUIC.
func quicTransport(t *testing.T, h *netlab.Host, at string, ids quic.ConnectionIDGenerator) *quic.Transport {
	t.Helper()
	socket, err := h.ListenPacket("udp", at)
	if err != nil {
		t.Fatalf("listen on %s: %v", h.Name, err)
	}
	transport := &quic.Transport{Conn: socket, ConnectionIDGenerator: ids}
	t.Cleanup(func() { transport.Close(); socket.Close() })
	return transport
}

// start runs a server whose streams begin with its host's name and then echo.
func (q quicWay) start(t *testing.T, h *netlab.Host, at netip.AddrPort, serverID string) {
	t.Helper()
	listener, err := quicTransport(t, h, at.String(), q.connectionIDs(t, serverID)).Listen(quicServerTLS(t), nil)
	if err != nil {
		t.Fatalf("listen on %s: %v", h.Name, err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept(context.Background())
			if err != nil {
				return
			}
			go func() {
				stream, err := conn.AcceptStream(context.Background())
				if err != nil {
					return
				}
				_, _ = stream.Write([]byte(h.Name))
				_, _ = io.Copy(stream, stream)
			}()
		}
	}()
}

// A QUIC connection whose client goes on from another address, which the ring gives to another
// backend, stays with its server if the service declares what is in the connection IDs, and does
// not if it declares nothing.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2
func TestQUICMigration(t *testing.T) {
	t.Parallel()
	w := way{mode: "gue"}
	l := newLab(t, size{backends: 2})
	var services []string
	for _, q := range quicWays {
		services = append(services, q.service(w))
	}
	l.start(services...)
	parsed, err := config.Parse("weir.yaml", []byte(configText("eth0", "", services...)))
	if err != nil {
		t.Fatal(err)
	}
	table, _ := engine.Plan(parsed, nil, nil)
	for i, q := range quicWays {
		t.Run(q.name, func(t *testing.T) {
			for n, b := range l.backends {
				q.start(t, b, w.at(n+1, q.port), q.serverIDs[n])
			}
			// Ports whose flows belong to backend1 and to backend2.
			before, after := quicPort(t, &table.Services[i], 0), quicPort(t, &table.Services[i], 1)
			q.migrate(t, l, w, before, after)
		})
	}
}

const quicClient = "10.0.0.2"

// quicPort returns a source port of the client whose slot belongs to that backend.
func quicPort(t *testing.T, s *model.TableService, backend uint32) uint16 {
	t.Helper()
	for port := uint16(50000); port < 51000; port++ {
		flow := model.Flow{Segment: s.Segment, Source: netip.MustParseAddr(quicClient), Destination: s.VIP,
			SourcePort: port, DestinationPort: s.Port.First, Protocol: uint8(s.Protocol)}
		if s.Ring.Slots[s.Ring.SlotOf(flow.Hash(s.Salt, s.Affinity))].Owner == backend {
			return port
		}
	}
	t.Fatalf("no port of 1000 leads to backend %d", backend)
	return 0
}

// migrate connects from one port, goes on from another, and expects echoes throughout.
func (q quicWay) migrate(t *testing.T, l *lab, w way, before, after uint16) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	client := quicTransport(t, l.client, fmt.Sprintf("%s:%d", quicClient, before), nil)
	server := net.UDPAddrFromAddrPort(netip.AddrPortFrom(w.vip(), q.port))
	conn, err := client.Dial(ctx, server, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"echo"}},
		&quic.Config{HandshakeIdleTimeout: 30 * time.Second})
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer func() { _ = conn.CloseWithError(0, "") }()
	stream, err := conn.OpenStreamSync(ctx)
	if err != nil {
		t.Fatalf("open a stream: %v", err)
	}
	deadline, _ := ctx.Deadline()
	_ = stream.SetDeadline(deadline)
	quicEcho(t, stream, "backend1")
	path, err := conn.AddPath(quicTransport(t, l.client, fmt.Sprintf("%s:%d", quicClient, after), nil))
	if err != nil {
		t.Fatalf("add a path: %v", err)
	}
	probe, cancel := context.WithTimeout(ctx, map[bool]time.Duration{false: 30 * time.Second, true: 3 * time.Second}[q.without])
	defer cancel()
	err = path.Probe(probe)
	if q.without {
		if err == nil {
			t.Error("the client's new address works although the ring gives it to another backend: this test cannot fail")
		}
		return
	}
	if err != nil {
		t.Fatalf("the client's new address does not work: %v", err)
	}
	if err := path.Switch(); err != nil {
		t.Fatalf("go on from the new address: %v", err)
	}
	for range 20 {
		quicEcho(t, stream, "")
	}
}

// quicEcho sends data for several packets and expects it back, after a greeting.
func quicEcho(t *testing.T, stream io.ReadWriter, greeting string) {
	t.Helper()
	data := make([]byte, 20000)
	rand.Read(data)
	if _, err := stream.Write(data); err != nil {
		t.Fatalf("send: %v", err)
	}
	got := make([]byte, len(greeting)+len(data))
	if _, err := io.ReadFull(stream, got); err != nil {
		t.Fatalf("receive: %v", err)
	}
	if want := append([]byte(greeting), data...); !bytes.Equal(got, want) {
		t.Errorf("the echo of %d bytes differs, or is not after %q", len(data), greeting)
	}
}
