package traffic

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
)

// quicProtocol is the protocol that clients and servers negotiate (ALPN).
const quicProtocol = "weir-chaos"

// quicIdle is how long a connection may be silent: as long as a run. The next exchange finds a
// broken connection.
const quicIdle = 24 * time.Hour

// moveShare is the average number of pauses for each move of a moving connection.
const moveShare = 3

// errNotMoved says that a client's new address did not work.
var errNotMoved = errors.New("the client's new address is not answered")

// quicPipe is a QUIC connection's end at the client: one stream. Another socket may replace the one
// by which its packets leave.
type quicPipe struct {
	*quic.Stream
	load *Load
	conn *quic.Conn

	mu      sync.Mutex
	closed  bool
	sockets []quicSocket // all that have been used
	before  *quic.Path   // the previous one; nil: none, or the first
	current *quic.Path
}

// quicSocket is a socket at one of the client's addresses.
type quicSocket struct {
	*quic.Transport
	socket net.PacketConn
}

func (s quicSocket) close() {
	_ = s.Transport.Close() // whatever does not end now ends with the socket
	_ = s.socket.Close()
}

func (s quicSocket) address() netip.AddrPort { return s.socket.LocalAddr().(*net.UDPAddr).AddrPort() }

// dialQUIC opens a connection and its stream.
func (l *Load) dialQUIC(ctx context.Context, rng *rand.Rand) (dialled, *quicPipe, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Patience)
	defer cancel()
	socket, err := l.quicSocket(rng)
	if err != nil {
		return dialled{}, nil, err
	}
	began := time.Now()
	conn, err := socket.Dial(ctx, net.UDPAddrFromAddrPort(l.QUIC), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{quicProtocol}},
		&quic.Config{MaxIdleTimeout: quicIdle, HandshakeIdleTimeout: l.Patience})
	if err != nil {
		socket.close()
		return dialled{}, nil, err
	}
	q := &quicPipe{load: l, conn: conn, sockets: []quicSocket{socket}}
	if q.Stream, err = conn.OpenStreamSync(ctx); err != nil {
		return dialled{}, nil, errors.Join(err, q.Close())
	}
	return dialled{q, socket.address(), began}, q, nil
}

// quicSocket makes a socket at one of the client's addresses.
func (l *Load) quicSocket(rng *rand.Rand) (quicSocket, error) {
	at := l.Addresses[rng.IntN(len(l.Addresses))]
	socket, err := l.Client.ListenPacket("udp4", netip.AddrPortFrom(at, 0).String())
	if err != nil {
		return quicSocket{}, err
	}
	return quicSocket{&quic.Transport{Conn: socket}, socket}, nil
}

// move continues from another port, and maybe another address, like a client that changes networks,
// or whose NAT has forgotten it: it never returns to the old ones.
func (q *quicPipe) move(rng *rand.Rand) (netip.AddrPort, error) {
	socket, err := q.load.quicSocket(rng)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if !q.keep(socket) {
		return netip.AddrPort{}, net.ErrClosed
	}
	path, err := q.conn.AddPath(socket.Transport)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("add a path: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(q.conn.Context(), q.load.Patience, errNotMoved)
	defer cancel()
	if err := path.Probe(ctx); err != nil {
		return netip.AddrPort{}, fmt.Errorf("probe %s: %w", socket.address(), err)
	}
	if err := path.Switch(); err != nil {
		return netip.AddrPort{}, fmt.Errorf("go on from %s: %w", socket.address(), err)
	}
	// Each path takes one of the few connection IDs that the server has issued. The last path may
	// still be in use, the one before it is not.
	if q.before != nil {
		_ = q.before.Close()
	}
	q.before, q.current = q.current, path
	return socket.address(), nil
}

// keep notes a socket, to be closed with the connection. It returns false if the connection is
// closed already.
func (q *quicPipe) keep(s quicSocket) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		s.close()
		return false
	}
	q.sockets = append(q.sockets, s)
	return true
}

// Close ends the connection and its sockets. It tells the server.
func (q *quicPipe) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	err := q.conn.CloseWithError(0, "")
	for _, s := range q.sockets {
		s.close()
	}
	return err
}
