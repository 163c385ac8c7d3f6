package traffic

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"

	"weir.io/weir/lab/netlab"
)

// Server is the server on a backend's host: it checks the bytes that it gets and answers. It is in
// the clients' process, so that the test can ask both ends.
type Server struct {
	host    *netlab.Host
	tracker *Tracker

	mu          sync.Mutex
	who         Identity
	connections map[end]bool
}

// end is a connection's end at a server.
type end interface {
	io.Closer
	// reset ends the connection as the end of its host would.
	reset()
}

// tcpEnd is a TCP connection's end.
type tcpEnd struct{ *net.TCPConn }

func (e tcpEnd) reset() {
	_ = e.SetLinger(0)
	_ = e.Close()
}

// Serve answers on the host's ports until the context ends.
func Serve(ctx context.Context, host *netlab.Host, number int, tcp, udp []string, tracker *Tracker) (*Server, error) {
	s := &Server{host: host, tracker: tracker, who: Identity{Backend: uint16(number)}, connections: map[end]bool{}}
	for _, address := range tcp {
		listener, err := host.Listen("tcp4", address)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { listener.Close() })
		go s.accept(listener)
	}
	for _, address := range udp {
		if err := s.serveDatagrams(ctx, address); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Server) identity() Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.who
}

// Reset ends every connection of the backend as the end of its host would, and begins its next
// life. If its links are up, its clients get a reset.
func (s *Server) Reset() {
	s.end(func(end) bool { return true })
}

// ResetRelayed does it only with clients' connections to the VIP, not with those that were
// redirected to the backend's own address.
func (s *Server) ResetRelayed(vip netip.Addr) {
	s.end(func(e end) bool {
		tcp, is := e.(tcpEnd)
		return !is || tcp.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap() == vip
	})
}

// end ends the backend's connections that which selects, and begins its next life.
func (s *Server) end(which func(end) bool) {
	s.mu.Lock()
	s.who.Life++
	var ends []end
	for e := range s.connections {
		if which(e) {
			ends = append(ends, e)
			delete(s.connections, e)
		}
	}
	s.mu.Unlock()
	for _, e := range ends {
		e.reset()
	}
}

// track notes a connection, and returns its identity and a function to call when it is over.
func (s *Server) track(e end) (Identity, func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections[e] = true
	return s.who, func() {
		s.mu.Lock()
		delete(s.connections, e)
		s.mu.Unlock()
		e.Close()
	}
}

func (s *Server) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the client is gone again
		}
		go s.converse(conn.(*net.TCPConn))
	}
}

// converse answers the requests of a TCP connection.
func (s *Server) converse(conn *net.TCPConn) {
	who, done := s.track(tcpEnd{conn})
	defer done()
	at := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr()
	s.tracker.accepted("tcp", conn.RemoteAddr().(*net.TCPAddr).AddrPort(), at, who)
	rest := &remains{conn: conn}
	defer s.tracker.left(rest)
	s.answer(conn, who, func(id uint64) { s.tracker.entered(id, rest) })
}

// answer answers requests, one after the other, until the connection is over or has wrong bytes. It
// calls known once it knows which connection it is.
func (s *Server) answer(conn io.ReadWriter, who Identity, known func(id uint64)) {
	buffer := make([]byte, bufferSize)
	var up, down *Stream
	for {
		if _, err := io.ReadFull(conn, buffer[:requestSize]); err != nil {
			return
		}
		r := parseRequest(buffer)
		if up == nil {
			up, down = Up(r.id), Down(r.id)
			known(r.id)
		}
		a := answer{id: r.id, from: who}
		err := receive(conn, buffer, up, int(r.up))
		if errors.Is(err, ErrWrongData) {
			a.status, r.down = wrong, 0
		} else if err != nil {
			return
		}
		if err := send(conn, buffer, a.append(nil), down, int(r.down)); err != nil || a.status == wrong {
			return
		}
	}
}
