package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/retry"
)

// listener accepts the connections of passive neighbors at one address.
type listener struct {
	log    *slog.Logger
	end    context.CancelFunc
	config net.ListenConfig
	signed map[netip.Addr]string // passwords that the socket has
	socket *net.TCPListener
	// problem is why there is no socket, and kept is why neighbors cannot connect to it; both are
	// empty if all is well.
	problem string
	kept    map[netip.Addr]string
}

// problems says what is wrong with the listener; empty: nothing.
func (l *listener) problems() string {
	if l.problem != "" {
		return l.problem
	}
	var all []string
	for _, a := range slices.SortedFunc(maps.Keys(l.kept), netip.Addr.Compare) {
		all = append(all, fmt.Sprintf("neighbor %v cannot connect: %s", a, l.kept[a]))
	}
	return strings.Join(all, "; ")
}

// listen opens and closes listeners as set. The speaker's mutex is held.
func (s *Speaker) listen() {
	wanted := map[netip.Addr]bool{}
	for _, a := range s.config.Listen {
		wanted[a] = true
		if s.listeners[a] == nil {
			ctx, cancel := context.WithCancel(context.Background())
			l := &listener{log: s.log.With("listen", a), end: cancel, signed: map[netip.Addr]string{}, kept: map[netip.Addr]string{}}
			l.config.Control = listening
			l.config.SetMultipathTCP(false) // TCP MD5 does not work on such sockets
			s.listeners[a] = l
			s.running.Go(func() { s.serve(ctx, l, a) })
		}
	}
	for a, l := range s.listeners {
		if !wanted[a] {
			l.close()
			delete(s.listeners, a)
			continue
		}
		s.sign(l, a)
	}
}

func (l *listener) close() {
	l.end()
	if l.socket != nil {
		_ = l.socket.Close()
	}
}

// listening lets a socket have an address that the host gets later, and answers all neighbors with
// the TTL that those with ttl-security want: before a connection is accepted, its neighbor is not
// known.
func listening(network, _ string, raw syscall.RawConn) error {
	level, ttl := unix.IPPROTO_IP, unix.IP_TTL
	if network == "tcp6" {
		level, ttl = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	}
	return onSocket(raw, func(fd int) error {
		return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1), unix.SetsockoptInt(fd, level, ttl, 255))
	})
}

// serve accepts connections until the context ends.
func (s *Speaker) serve(ctx context.Context, l *listener, a netip.Addr) {
	for {
		err := s.accept(ctx, l, a)
		if ctx.Err() != nil {
			return
		}
		problem := systemError(err).Error()
		if errors.Is(err, syscall.EADDRINUSE) {
			problem = fmt.Sprintf("TCP port %d of %v is another process's: is there another BGP daemon on this host?", s.port, a)
		}
		s.mu.Lock()
		if problem != l.problem {
			l.log.Error("no BGP neighbor can connect", "error", problem)
		}
		l.problem, l.socket = problem, nil
		s.mu.Unlock()
		retry.Sleep(ctx, lastPause)
	}
}

func (s *Speaker) accept(ctx context.Context, l *listener, a netip.Addr) error {
	opened, err := l.config.Listen(ctx, network(a), netip.AddrPortFrom(a, s.port).String())
	if err != nil {
		return err
	}
	socket := opened.(*net.TCPListener)
	defer socket.Close()
	s.mu.Lock()
	if ctx.Err() != nil {
		s.mu.Unlock()
		return context.Cause(ctx)
	}
	if l.problem != "" {
		l.log.Info("BGP neighbors can connect again")
	}
	l.socket, l.problem = socket, ""
	clear(l.signed)
	s.sign(l, a)
	s.mu.Unlock()
	ended := make(chan struct{})
	defer close(ended)
	s.running.Go(func() { s.signAgain(l, a, ended) })
	for {
		conn, err := socket.Accept()
		if err != nil {
			return err
		}
		s.assign(l, conn.(*net.TCPConn))
	}
}

// signAgain tries again to set the passwords that failed, until the socket is closed.
func (s *Speaker) signAgain(l *listener, a netip.Addr, ended <-chan struct{}) {
	again := time.NewTicker(signPause)
	defer again.Stop()
	for {
		select {
		case <-ended:
			return
		case <-again.C:
		}
		s.mu.Lock()
		if len(l.kept) > 0 {
			s.sign(l, a)
		}
		s.mu.Unlock()
	}
}

// signPause is how long after an error the password of a passive neighbor is read again.
const signPause = time.Second

// sign gives the socket the passwords of the passive neighbors. The mutex is held.
func (s *Speaker) sign(l *listener, a netip.Addr) {
	if l.socket == nil {
		return
	}
	raw, err := l.socket.SyscallConn()
	if err != nil {
		return // it is closed: the next socket is signed when it opens
	}
	kept, now := map[netip.Addr]string{}, map[netip.Addr]string{}
	keep := func(neighbor netip.Addr, err error) {
		if kept[neighbor] = err.Error(); l.kept[neighbor] != kept[neighbor] {
			l.log.Error("a BGP neighbor cannot connect", "neighbor", neighbor, "error", err)
		}
	}
	defer func() { l.kept = kept }()
	for i := range s.config.Neighbors {
		n := &s.config.Neighbors[i]
		if !n.Passive || n.Address.Is4() != a.Is4() {
			continue
		}
		secret, err := password(n)
		if err != nil {
			keep(n.Address, err)
			continue
		}
		now[n.Address] = secret
	}
	for address := range l.signed {
		if _, stays := now[address]; !stays {
			now[address] = ""
		}
	}
	for address, secret := range now {
		if known, has := l.signed[address]; has && known == secret {
			continue
		}
		if err := onSocket(raw, func(fd int) error { return sign(fd, address, secret) }); err != nil {
			keep(address, err)
			continue
		}
		l.signed[address] = secret
	}
}

// assign gives a connection to the session that waits for it.
func (s *Speaker) assign(l *listener, conn *net.TCPConn) {
	from := addressOf(conn.RemoteAddr())
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.sessions[from.String()]
	if s.closed || one == nil || !one.now.Load().neighbor.Passive {
		_ = conn.Close()
		return
	}
	if err := l.prepare(one.now.Load(), conn); err != nil {
		l.log.Error("a BGP neighbor's connection is not taken", "neighbor", from, "error", err)
		_ = conn.Close()
		return
	}
	select {
	case old := <-one.incoming:
		_ = old.Close()
	default:
	}
	one.incoming <- conn // has room: only this code sends, and holds the mutex
}

// prepare sets the connection's own options. The listener must have signed it: without the password
// no host may claim to be the neighbor.
func (l *listener) prepare(w *want, conn *net.TCPConn) error {
	o, err := newOptions(w)
	if err != nil {
		return err
	}
	if l.signed[w.neighbor.Address] != o.password {
		return errors.New("it is not signed by the password that holds now")
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return errors.New("it is closed already")
	}
	return onSocket(raw, o.set)
}
