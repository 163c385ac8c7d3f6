package test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// reusedPorts is the number of the client's ports in these tests: enough for a wave; the next wave
// reuses them.
const reusedPorts = 1000

// Many connections at once with late SYN-ACKs are all redirected, by each policy; and so are those
// that reuse their ports after an RST, to whichever backend the policy then chooses.
func TestRedirectPortsAfterReset(t *testing.T) {
	t.Parallel()
	policies := []string{"random", "round-robin", "p2c", "least-conn", "maglev"}
	var services []redirectService
	for i, policy := range policies {
		services = append(services, redirectService{number: 1 + i, port: 7000 + i, fallback: "gue", policy: policy, backends: everyBackend(3)})
	}
	l := newRedirectLab(t, services...)
	l.client.Sysctl("net.ipv4.ip_local_port_range", fmt.Sprintf("%d %d", 30000, 30000+reusedPorts-1))
	for _, b := range l.backends {
		for _, s := range services {
			l.answerAt(b, netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(s.port)))
		}
		slowDown(t, b)
	}
	const waves, connections = 2, 700
	for _, s := range services {
		bothFamilies(t, func(t *testing.T, six bool) {
			to := netip.AddrPortFrom(redirectVIP(s.number, six), uint16(s.port))
			asked, fell := l.event("client", "asked"), l.event("client", "no_place")
			for range waves {
				callAtOnce(t, l.client, to, connections)
			}
			if n := l.event("client", "asked") - asked; n != waves*connections {
				t.Errorf("%s: %d of %d SYNs have asked to be redirected", s.policy, n, waves*connections)
			}
			if n := l.event("client", "no_place") - fell; n != 0 {
				t.Errorf("%s: %d of %d SYNs found no place: their connections are not redirected", s.policy, n, waves*connections)
			}
		})
	}
}

// The same for guests: their hosts' agents redirect their connections, and repeat the option in
// their answers.
func TestRedirectPortsOfGuestsAfterReset(t *testing.T) {
	t.Parallel()
	l := newRoutedGuestsLab(t)
	l.startGuests(t, routedMachine...)
	l.guest.Sysctl("net.ipv4.ip_local_port_range", fmt.Sprintf("%d %d", 30000, 30000+reusedPorts-1))
	const waves, connections = 3, 400
	for _, address := range routedMachine {
		asked, echoed := l.event("client", "asked"), l.event("backend1", "echoed")
		for range waves {
			callAtOnce(t, l.guest.Host, netip.AddrPortFrom(redirectVIP(1, address.Is6()), guestPort), connections)
		}
		if n := l.event("client", "asked") - asked; n != waves*connections {
			t.Errorf("%v: %d of %d SYNs have asked to be redirected", address, n, waves*connections)
		}
		if n := l.event("backend1", "echoed") - echoed; n < waves*connections {
			t.Errorf("%v: %d of %d answers have repeated the option", address, n, waves*connections)
		}
	}
}

// A guest whose SYN is answered too late sends it again without the option, and has its connection
// by full NAT, although the backend's host has repeated the option in the late answer.
func TestRedirectGuestsFallBack(t *testing.T) {
	t.Parallel()
	l := newRoutedGuestsLab(t)
	l.startGuests(t, routedMachine...)
	for _, address := range routedMachine {
		six := address.Is6()
		guests, client := "10.9.1.0/24", clientAddress(2, six)
		if six {
			guests = "fd00:9:1::/64"
		}
		again, taken := l.event("client", "again"), l.event("client", "taken")
		on(t, l.router, "ip", "route", "replace", "blackhole", guests)
		var fd int
		err := l.guest.Do(func() (err error) {
			fd, err = beginCall(netip.AddrPortFrom(redirectVIP(1, six), guestPort))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		l.agents["client"].waitFor("have a SYN sent again", func() bool { return l.event("client", "again") > again })
		l.router.Route(guests, client.String())
		if err := errors.Join(sendQuestion(fd), awaitAnswer(fd), unix.Close(fd)); err != nil {
			t.Errorf("call %v: %v", address, err)
		}
		if n := l.event("client", "taken") - taken; n != 0 {
			t.Errorf("%v: %d connections were taken over, which shows nothing: want 0", address, n)
		}
	}
}

// slowDown makes a host's packets wait in a queue of its link, in both families: many SYNs are then
// under way at once.
func slowDown(t *testing.T, h *netlab.Host) {
	t.Helper()
	on(t, h, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "1mbit", "burst", "2kb", "limit", "4mb")
}

// callAtOnce opens that many connections before it looks at any, sends something and gets an answer
// on each, and resets them all.
func callAtOnce(t *testing.T, h *netlab.Host, to netip.AddrPort, connections int) {
	t.Helper()
	if err := h.Do(func() error { return atOnce(to, connections) }); err != nil {
		t.Fatalf("call %v from %s: %v", to, h.Name, err)
	}
}

func atOnce(to netip.AddrPort, connections int) (err error) {
	var open []int
	defer func() {
		for _, fd := range open {
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	for range connections {
		fd, err := beginCall(to)
		if err != nil {
			return err
		}
		open = append(open, fd)
	}
	for i, fd := range open {
		if err := sendQuestion(fd); err != nil {
			return fmt.Errorf("connection %d of %d: %w", i, connections, err)
		}
	}
	for i, fd := range open {
		if err := awaitAnswer(fd); err != nil {
			return fmt.Errorf("connection %d of %d: %w", i, connections, err)
		}
	}
	return nil
}

// sendQuestion waits until a connection is open, and sends something.
func sendQuestion(fd int) error {
	if err := awaitSocket(fd, unix.POLLOUT); err != nil {
		return fmt.Errorf("open: %w", err)
	}
	if _, err := unix.Write(fd, []byte("question\n")); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

func awaitAnswer(fd int) error {
	if err := awaitSocket(fd, unix.POLLIN); err != nil {
		return fmt.Errorf("wait for an answer: %w", err)
	}
	answer := make([]byte, 100)
	if n, err := unix.Read(fd, answer); err != nil || n == 0 {
		return fmt.Errorf("%d bytes are the answer: %w", n, err)
	}
	return nil
}

// beginCall begins a connection that will be reset when its socket is closed.
func beginCall(to netip.AddrPort) (int, error) {
	family, sockaddr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port())})
	if to.Addr().Is6() {
		family, sockaddr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	} else {
		sockaddr.(*unix.SockaddrInet4).Addr = to.Addr().As4()
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return 0, errors.Join(fmt.Errorf("SO_LINGER: %w", err), unix.Close(fd))
	}
	err = netlab.UntilFree(func() error { return unix.Connect(fd, sockaddr) })
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return 0, errors.Join(fmt.Errorf("connect: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// awaitSocket waits for an event of a socket; it returns the socket's own error, if any.
func awaitSocket(fd int, event int16) error {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: event}}, 1000)
		if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
			continue
		}
		if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		failed, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return fmt.Errorf("SO_ERROR: %w", err)
		}
		if failed != 0 {
			return unix.Errno(failed)
		}
		return nil
	}
	return errors.New("nothing has happened within 30 s")
}
