package traffic

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"

	"weir.io/weir/quiclb"
)

// ServeQUIC answers QUIC connections at an address until the context ends, with connection IDs that
// contain the server ID.
func (s *Server) ServeQUIC(ctx context.Context, address string, codec *quiclb.Codec, serverID []byte) error {
	generator, err := quiclb.NewGenerator(codec, serverID)
	if err != nil {
		return err
	}
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	socket, err := s.host.ListenPacket("udp4", address)
	if err != nil {
		return err
	}
	var key quic.StatelessResetKey
	rand.Read(key[:])
	transport := &quic.Transport{Conn: &quicWatch{PacketConn: socket, socket: socket.(*net.UDPConn), length: codec.Length(), server: s},
		ConnectionIDGenerator: quicNames{generator, codec.Length(), s}, StatelessResetKey: &key}
	listener, err := transport.Listen(&tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{quicProtocol}},
		&quic.Config{MaxIdleTimeout: quicIdle})
	if err != nil {
		return errors.Join(err, socket.Close())
	}
	context.AfterFunc(ctx, func() {
		_ = transport.Close()
		_ = socket.Close()
	})
	go func() {
		for {
			conn, err := listener.Accept(ctx)
			if err != nil {
				return
			}
			go s.converseQUIC(conn)
		}
	}()
	return nil
}

// converseQUIC answers the requests of a connection, on its one stream.
func (s *Server) converseQUIC(conn *quic.Conn) {
	who, done := s.track(quicEnd{conn})
	defer done()
	s.tracker.accepted("quic", conn.RemoteAddr().(*net.UDPAddr).AddrPort(), netip.Addr{}, who)
	if stream, err := conn.AcceptStream(conn.Context()); err == nil {
		s.answer(stream, who, func(uint64) {})
	}
}

// quicEnd is a connection's end at a server.
type quicEnd struct{ *quic.Conn }

func (e quicEnd) Close() error { return e.CloseWithError(0, "") }

// reset ends the connection with an error, because a host that is gone could not send a reset.
func (e quicEnd) reset() { _ = e.CloseWithError(1, "this server is gone") }

// selfSigned makes a certificate that no client checks.
func selfSigned() (tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make key: %w", err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(quicIdle), DNSNames: []string{"weir"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, nil
}

// quicNames makes a server's connection IDs, and tells the tracker their backend.
type quicNames struct {
	*quiclb.Generator
	length int
	server *Server
}

// GenerateConnectionID returns a new connection ID.
func (n quicNames) GenerateConnectionID() (quic.ConnectionID, error) {
	id, err := n.Generate()
	if err != nil {
		return quic.ConnectionID{}, err
	}
	n.server.tracker.named(string(id), n.server.identity())
	return quic.ConnectionIDFromBytes(id), nil
}

// ConnectionIDLen returns how many bytes each connection ID has.
func (n quicNames) ConnectionIDLen() int { return n.length }

// quicWatch is a server's socket that tells the tracker of every incoming packet. It lacks some of a
// UDP socket's methods, so that packets are read by ReadFrom.
type quicWatch struct {
	net.PacketConn
	socket *net.UDPConn
	length int // of a connection ID
	server *Server
}

// ReadFrom reads a packet.
func (w *quicWatch) ReadFrom(p []byte) (int, net.Addr, error) {
	n, from, err := w.PacketConn.ReadFrom(p)
	if id := connectionID(p[:n], w.length); id != nil {
		w.server.tracker.gotQUIC(string(id), w.server.identity())
	}
	return n, from, err
}

// SyscallConn returns the socket.
func (w *quicWatch) SyscallConn() (syscall.RawConn, error) { return w.socket.SyscallConn() }

// SetReadBuffer sets the size of its buffer.
func (w *quicWatch) SetReadBuffer(bytes int) error { return w.socket.SetReadBuffer(bytes) }

// SetWriteBuffer sets the size of its buffer.
func (w *quicWatch) SetWriteBuffer(bytes int) error { return w.socket.SetWriteBuffer(bytes) }

// connectionID returns the destination connection ID in a packet of an established connection, or
// of a handshake that the server has answered (RFC 9000, 17.2 and 17.3). In earlier packets the
// client has made it up.
func connectionID(p []byte, length int) []byte {
	const (
		long      = 0x80
		kindShift = 4
		kinds     = 3
		handshake = 2
		lengthAt  = 5
	)
	at := 1
	if len(p) > 0 && p[0]&long != 0 {
		if at = lengthAt + 1; len(p) < at || p[0]>>kindShift&kinds != handshake || int(p[lengthAt]) != length {
			return nil
		}
	}
	if len(p) < at+length {
		return nil
	}
	return p[at : at+length]
}
