package health

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	grpchealth "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"weir.io/weir/lab/netlab"
)

// servers run on one host of a lab until the test ends.
type servers struct {
	t    *testing.T
	host *netlab.Host
}

func (s servers) listen(address string) net.Listener {
	s.t.Helper()
	l, err := s.host.Listen("tcp", address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { l.Close() })
	return l
}

// tcp lets f have every connection.
func (s servers) tcp(address string, f func(net.Conn)) {
	s.t.Helper()
	l := s.listen(address)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				f(conn)
			}()
		}
	}()
}

// udp answers every datagram with what f makes of it; nil: nothing.
func (s servers) udp(address string, f func([]byte) []byte) {
	s.t.Helper()
	conn, err := s.host.ListenPacket("udp", address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if answer := f(buffer[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
}

// http serves the paths that checks ask for, over TLS where there is a certificate.
func (s servers) http(address string, certificate *tls.Certificate) {
	s.t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "all is well with %s\n", r.Host) })
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "sorry", 500) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
		for err := error(nil); err == nil; {
			_, err = w.Write(make([]byte, 1<<16))
		}
	})
	mux.HandleFunc("/wordy", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Words", strings.Repeat("word ", 1<<16))
	})
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/early", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusNoContent)
	})
	server := &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0)} // clients that break off
	l := s.listen(address)
	if certificate != nil {
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*certificate}})
	}
	s.t.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(l) }()
}

// grpc serves the health protocol of grpc's own library.
func (s servers) grpc(address string, certificate *tls.Certificate) {
	s.t.Helper()
	var options []grpc.ServerOption
	if certificate != nil {
		options = append(options, grpc.Creds(credentials.NewServerTLSFromCert(certificate)))
	}
	server, health := grpc.NewServer(options...), grpchealth.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health)
	health.SetServingStatus("ill", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	l := s.listen(address)
	s.t.Cleanup(server.Stop)
	go func() { _ = server.Serve(l) }()
}

// plainGRPC serves without the health protocol.
func (s servers) plainGRPC(address string) {
	s.t.Helper()
	server := grpc.NewServer()
	l := s.listen(address)
	s.t.Cleanup(server.Stop)
	go func() { _ = server.Serve(l) }()
}

// dnsAnswer makes an answer of a query, byte by byte as RFC 1035 says it: not by the
// library that made the query.
func dnsAnswer(query []byte) []byte {
	answer := append([]byte(nil), query...)
	answer[2] |= 0x80 // QR: an answer
	switch answer[12] {
	case 5: // a first label of five letters
		answer[3] |= 3 // NXDOMAIN
	case 6:
		answer[3] |= 5 // REFUSED
		answer = answer[:12]
		copy(answer[4:], make([]byte, 8)) // the header alone
	case 7:
		answer[13]++ // another name
	case 8:
		return []byte("not DNS")
	case 9:
		answer[0]++ // another query's
	}
	return answer
}

// dnsStream answers one query over TCP.
func dnsStream(conn net.Conn) {
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return
	}
	query := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, query); err != nil {
		return
	}
	answer := dnsAnswer(query)
	_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
}

// authority signs certificates.
type authority struct {
	t           *testing.T
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	a := authority{t: t}
	_, a.certificate, a.key = a.make("test CA", true)
	return a
}

func (a authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw}))
}

// sign makes a server's certificate.
func (a authority) sign(name string) *tls.Certificate {
	raw, _, key := a.make(name, false)
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

func (a authority) make(name string, isCA bool) ([]byte, *x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: isCA, BasicConstraintsValid: true,
	}
	parent, signer := template, key
	if !isCA {
		parent, signer = a.certificate, a.key
	}
	raw, err2 := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	certificate, err3 := x509.ParseCertificate(raw)
	if err := errors.Join(err, err2, err3); err != nil {
		a.t.Fatal(err)
	}
	return raw, certificate, key
}

// nft makes a host drop or refuse.
func nft(t *testing.T, h *netlab.Host, rules ...string) {
	t.Helper()
	rules = append([]string{"add table inet test", "add chain inet test in { type filter hook input priority 0 ; }"}, rules...)
	for _, rule := range rules {
		if out, err := h.Command(context.Background(), "nft", rule).CombinedOutput(); err != nil {
			t.Fatalf("nft %s: %v\n%s", rule, err, out)
		}
	}
}
