package traffic

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"

	"weir.io/weir/internal/netlab"
)

// Server is what runs on a backend's host: it checks what it is sent and answers.
// It is in the process of the clients, so that both ends can be asked.
type Server struct {
	host   *netlab.Host
	ledger *Ledger

	mu          sync.Mutex
	who         Identity
	connections map[*net.TCPConn]bool
}

// Serve answers on the host's ports until the context ends.
func Serve(ctx context.Context, host *netlab.Host, number int, tcp, udp []string, ledger *Ledger) (*Server, error) {
	s := &Server{host: host, ledger: ledger, who: Identity{Backend: uint16(number)}, connections: map[*net.TCPConn]bool{}}
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

// Reset ends every connection of the backend as its host's end would, and begins
// its next life. With its links up, its clients are told by a reset.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.who.Life++
	for conn := range s.connections {
		_ = conn.SetLinger(0)
		_ = conn.Close()
	}
	clear(s.connections)
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

// converse answers the requests of a connection.
func (s *Server) converse(conn *net.TCPConn) {
	s.mu.Lock()
	who := s.who
	s.connections[conn] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.connections, conn)
		s.mu.Unlock()
		conn.Close()
	}()
	s.ledger.accepted(conn.RemoteAddr().(*net.TCPAddr).AddrPort(), who)
	buffer := make([]byte, bufferSize)
	var up, down *Stream
	for {
		if _, err := io.ReadFull(conn, buffer[:requestSize]); err != nil {
			return
		}
		r := parseRequest(buffer)
		if up == nil {
			up, down = Up(r.id), Down(r.id)
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

// clientPort returns a port if it is a client's own: with full NAT the server sees
// the director's.
func (l *Ledger) clientPort(a netip.AddrPort) (uint16, bool) {
	return a.Port(), a.Addr().Unmap() == l.client
}
