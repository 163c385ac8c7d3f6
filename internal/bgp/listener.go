package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// listens is where passive neighbors connect to: an address of bgp.listen, in a VRF or in none.
type listens struct {
	address netip.Addr
	vrf     string
}

// listensAt returns the listeners that an address needs: one for each VRF with a passive neighbor, and
// one in none, if there is a passive neighbor in none, or no other one. The kernel keeps those in VRFs
// apart (Linux 5.0), but not one on an interface that is no VRF's from one in none: they cannot have
// the same port, and with SO_REUSEPORT each might get the other's connections. The mutex is held.
func (s *Speaker) listensAt(a netip.Addr) (all []listens) {
	for i := range s.config.Neighbors {
		n := &s.config.Neighbors[i]
		if at := (listens{a, n.VRF}); n.Passive && n.Address.Is4() == a.Is4() && !slices.Contains(all, at) {
			all = append(all, at)
		}
	}
	if all == nil {
		return []listens{{a, ""}}
	}
	return all
}

// listener accepts the connections of passive neighbors at one address.
type listener struct {
	at     listens
	log    *slog.Logger
	end    context.CancelFunc
	config net.ListenConfig
	signed map[netip.Addr]string // passwords that the socket has
	socket *net.TCPListener
	// problem is why there is no socket, and kept is why neighbors cannot connect to it; both are
	// empty if all is well.
	problem string
	kept    map[netip.Addr]string
	gone    error // why the socket was closed: its VRF's device is gone
}

// problems says what is wrong with the listener.
func (l *listener) problems() (all []string) {
	if l.problem != "" {
		return []string{l.problem}
	}
	for _, a := range slices.SortedFunc(maps.Keys(l.kept), netip.Addr.Compare) {
		all = append(all, fmt.Sprintf("neighbor %s cannot connect: %s", model.InVRF(a, l.at.vrf), l.kept[a]))
	}
	return all
}

// listen opens and closes listeners as set. The speaker's mutex is held.
func (s *Speaker) listen() {
	wanted := map[listens]bool{}
	for _, a := range s.config.Listen {
		for _, at := range s.listensAt(a) {
			wanted[at] = true
		}
	}
	for at, l := range s.listeners { // first: another one may need the port
		if !wanted[at] {
			l.close()
			delete(s.listeners, at)
			continue
		}
		s.sign(l)
	}
	for at := range wanted {
		if s.listeners[at] == nil {
			ctx, cancel := context.WithCancel(context.Background())
			l := &listener{at: at, log: s.log.With("listen", model.InVRF(at.address, at.vrf)), end: cancel, signed: map[netip.Addr]string{}, kept: map[netip.Addr]string{}}
			l.config.Control = at.control
			l.config.SetMultipathTCP(false) // TCP MD5 does not work on such sockets
			s.listeners[at] = l
			s.running.Go(func() { s.serve(ctx, l) })
		}
	}
}

// listensTwice reports whether an address has several listeners.
func (s *Speaker) listensTwice(a netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.listensAt(a)) > 1
}

func (l *listener) close() {
	l.end()
	if l.socket != nil {
		_ = l.socket.Close()
	}
}

// control lets a socket have an address that the host gets later, and answers all neighbors with
// the TTL that those with ttl-security want: before a connection is accepted, its neighbor is not
// known.
func (at listens) control(network, _ string, raw syscall.RawConn) error {
	level, ttl := unix.IPPROTO_IP, unix.IP_TTL
	if network == "tcp6" {
		level, ttl = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	}
	return onSocket(raw, func(fd int) error {
		return errors.Join(toVRF(fd, at.vrf), unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1), unix.SetsockoptInt(fd, level, ttl, 255))
	})
}

// serve accepts connections until the context ends.
func (s *Speaker) serve(ctx context.Context, l *listener) {
	for {
		err := s.accept(ctx, l)
		if ctx.Err() != nil {
			return
		}
		problem := systemError(err).Error()
		if errors.Is(err, syscall.EADDRINUSE) {
			problem = fmt.Sprintf("TCP port %d of %v is another process's: is there another BGP daemon on this host?", s.port, l.at.address)
			if s.listensTwice(l.at.address) {
				problem = fmt.Sprintf("TCP port %d of %v cannot be had in no VRF and on an interface that is no VRF's: give those passive neighbors another address in bgp.listen, or a VRF (or another process has it)", s.port, l.at.address)
			}
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

func (s *Speaker) accept(ctx context.Context, l *listener) error {
	opened, err := l.config.Listen(ctx, network(l.at.address), netip.AddrPortFrom(l.at.address, s.port).String())
	if err != nil {
		return err
	}
	socket := opened.(*net.TCPListener)
	defer socket.Close()
	device := indexOf(l.at.vrf)
	s.mu.Lock()
	if ctx.Err() != nil {
		s.mu.Unlock()
		return context.Cause(ctx)
	}
	if l.problem != "" {
		l.log.Info("BGP neighbors can connect again")
	}
	l.socket, l.problem, l.gone = socket, "", nil
	clear(l.signed)
	s.sign(l)
	s.mu.Unlock()
	ended := make(chan struct{})
	defer close(ended)
	s.running.Go(func() { s.lookAfter(l, device, ended) })
	for {
		conn, err := socket.Accept()
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			return cmp.Or(l.gone, err)
		}
		s.assign(l, conn.(*net.TCPConn))
	}
}

// lookAfter tries again to set the passwords that failed, until the socket is closed, and closes it
// when the device that it is bound to is gone: a device that is made anew is another one.
func (s *Speaker) lookAfter(l *listener, device int, ended <-chan struct{}) {
	again := time.NewTicker(signPause)
	defer again.Stop()
	for {
		select {
		case <-ended:
			return
		case <-again.C:
		}
		s.mu.Lock()
		if l.at.vrf != "" && indexOf(l.at.vrf) != device && l.socket != nil {
			l.gone = fmt.Errorf("interface %s (vrf) is gone, or was made anew", l.at.vrf)
			_ = l.socket.Close()
		}
		if len(l.kept) > 0 {
			s.sign(l)
		}
		s.mu.Unlock()
	}
}

// indexOf returns an interface's number; 0: there is none.
func indexOf(name string) int {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return 0
	}
	return link.Index
}

// signPause is how long after an error the password of a passive neighbor is read again.
const signPause = time.Second

// sign gives the socket the passwords of the passive neighbors. The mutex is held.
func (s *Speaker) sign(l *listener) {
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
		if !n.Passive || n.VRF != l.at.vrf || n.Address.Is4() != l.at.address.Is4() {
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
	one := s.sessions[model.InVRF(from, l.at.vrf)]
	if s.closed || one == nil || !one.now.Load().neighbor.Passive || s.ofAnotherVRF(l, conn) {
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

// ofAnotherVRF reports whether a connection to a listener in no VRF has come by the device of a
// neighbor's VRF. The host may let it (net.ipv4.tcp_l3mdev_accept), and while that VRF's own listener
// is not there a tenant's router would be taken for the neighbor with the same address. The mutex is
// held.
func (s *Speaker) ofAnotherVRF(l *listener, conn *net.TCPConn) bool {
	if l.at.vrf != "" || !slices.ContainsFunc(s.config.Neighbors, func(n model.BGPNeighbor) bool { return n.VRF != "" }) {
		return false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false // it is closed already
	}
	device := ""
	_ = onSocket(raw, func(fd int) (err error) {
		device, err = unix.GetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE)
		return err
	})
	return device != "" && slices.ContainsFunc(s.config.Neighbors, func(n model.BGPNeighbor) bool { return n.VRF == device })
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
