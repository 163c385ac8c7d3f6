package bgp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// connectPatience is how long a neighbor may take to answer a connection.
const connectPatience = 5 * time.Second

// connect opens a connection, or waits for that of a passive neighbor.
func (s *session) connect(ctx context.Context, w *want) (net.Conn, error) {
	if again := s.before; again != nil {
		s.before = nil
		return again, nil
	}
	if w.neighbor.Passive {
		return s.accept(ctx)
	}
	options, err := newOptions(w)
	if err != nil {
		return nil, local{err}
	}
	dialer := net.Dialer{Timeout: connectPatience, KeepAlive: -1, Control: options.control}
	if w.neighbor.Source != nil {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(*w.neighbor.Source, 0))
	}
	address := net.JoinHostPort(w.neighbor.Address.String(), strconv.Itoa(int(w.neighbor.Port)))
	conn, err := dialer.DialContext(ctx, network(w.neighbor.Address), address)
	if err == nil {
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		if options.password != "" {
			return nil, errors.New("connect: no answer: it is not there, or a packet filter is between, or it has another password")
		}
		return nil, errors.New("connect: no answer: it is not there, or a packet filter is between, or it wants a password")
	}
	if w.neighbor.Source != nil && errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil, local{fmt.Errorf("connect: source %v is not an address of this host", w.neighbor.Source)}
	}
	if own := (local{}); errors.As(err, &own) {
		return nil, fmt.Errorf("connect: %w", own)
	}
	return nil, fmt.Errorf("connect: %w", systemError(err))
}

// accept waits for a passive neighbor's connection.
func (s *session) accept(ctx context.Context) (net.Conn, error) {
	select {
	case conn := <-s.incoming:
		return conn, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func network(a netip.Addr) string {
	if a.Is4() {
		return "tcp4"
	}
	return "tcp6"
}

// options are the socket options of a neighbor's connections.
type options struct {
	address  netip.Addr
	vrf      string // whose device it is bound to; empty: none
	ttl      int    // of packets to it; 0: the kernel's
	leastTTL int    // of packets from it; 0: any
	password string
}

func newOptions(w *want) (options, error) {
	n := &w.neighbor
	o := options{address: n.Address, vrf: n.VRF, ttl: int(n.TTL)}
	switch {
	case n.TTLSecurity > 0:
		o.ttl, o.leastTTL = 255, 256-int(n.TTLSecurity)
	case n.TTL == 0 && n.ASN != w.asn:
		o.ttl = 1
	}
	var err error
	o.password, err = password(n)
	return o, err
}

// PasswordFix is what to do when a password-file is wrong.
const PasswordFix = "put the password on the first line of a file that root can read"

// CheckPassword returns what is wrong with a neighbor's password-file.
func CheckPassword(n *model.BGPNeighbor) error {
	_, err := password(n)
	return err
}

// password reads the first line of a neighbor's password-file.
func password(n *model.BGPNeighbor) (string, error) {
	if n.PasswordFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(n.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("password-file: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line == "" || len(line) > unix.TCP_MD5SIG_MAXKEYLEN {
		return "", fmt.Errorf("password-file: the first line of %s has %d characters, not 1 to %d", n.PasswordFile, len(line), unix.TCP_MD5SIG_MAXKEYLEN)
	}
	return line, nil
}

// control sets the options of a socket that is about to connect.
func (o options) control(_, _ string, raw syscall.RawConn) error {
	return onSocket(raw, func(fd int) error {
		if err := toVRF(fd, o.vrf); err != nil {
			return local{err}
		}
		if err := o.set(fd); err != nil {
			return err
		}
		return sign(fd, o.address, o.password)
	})
}

// InVRF returns what binds a socket that is about to connect to a VRF by its device, or to another
// interface; to none if that is empty.
func InVRF(name string) func(network, address string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		return onSocket(raw, func(fd int) error { return toVRF(fd, name) })
	}
}

// toVRF binds a socket to a VRF by its device, or to another interface; to none if that is empty.
func toVRF(fd int, name string) error {
	if name == "" {
		return nil
	}
	err := unix.BindToDevice(fd, name)
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("there is no interface %s (vrf)", name)
	}
	if err != nil {
		return fmt.Errorf("bind to interface %s (vrf): %w", name, err)
	}
	return nil
}

// set sets the connection's own options: all except the password, which a listener has.
func (o options) set(fd int) error {
	level, ttl, least, class := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL, unix.IP_TOS
	if o.address.Is6() {
		level, ttl, least, class = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MINHOPCOUNT, unix.IPV6_TCLASS
	}
	for _, option := range []struct {
		name        string
		key, value  int
		isDifferent bool
	}{
		{"class", class, 0xc0, true}, // CS6, network control (RFC 4594)
		{"ttl", ttl, o.ttl, o.ttl > 0},
		{"ttl-security", least, o.leastTTL, o.leastTTL > 0},
	} {
		if !option.isDifferent {
			continue
		}
		if err := unix.SetsockoptInt(fd, level, option.key, option.value); err != nil {
			return local{fmt.Errorf("set %s of the connection: %w", option.name, err)}
		}
	}
	return nil
}

// sign makes the kernel sign what a socket sends to an address, and drop what comes from there
// without a signature (RFC 2385). Without a password it does neither.
func sign(fd int, to netip.Addr, password string) error {
	s := unix.TCPMD5Sig{Keylen: uint16(copy(make([]byte, unix.TCP_MD5SIG_MAXKEYLEN), password))}
	copy(s.Key[:], password)
	if to.Is4() {
		s.Addr.Family = unix.AF_INET
		a := to.As4()
		for i, b := range a { // sockaddr_in: the address follows the port
			s.Addr.Data[2+i] = b
		}
	} else {
		s.Addr.Family = unix.AF_INET6
		a := to.As16()
		for i, b := range a { // sockaddr_in6: it follows the port and the flow label
			s.Addr.Data[6+i] = b
		}
	}
	err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &s)
	if password == "" && err != nil {
		return nil // there was no password to remove
	}
	if err != nil {
		return local{fmt.Errorf("sign the connection (TCP MD5, CONFIG_TCP_MD5SIG): %w", err)}
	}
	return nil
}

func onSocket(raw syscall.RawConn, do func(fd int) error) error {
	var err error
	if outer := raw.Control(func(fd uintptr) { err = do(int(fd)) }); outer != nil {
		return outer
	}
	return err
}
