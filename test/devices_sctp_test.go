package test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// TestDevicesSCTP is for a kernel that has SCTP, as that of "make test-guest": associations of the kernel's own
// stack reach their backend in every mode and family, in full NAT, too, and stay there while a backend drains.
// Their checksums are those that the kernel, and its offloads, make. Servers bind the VIP alone.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2
func TestDevicesSCTP(t *testing.T) {
	t.Parallel()
	needSCTP(t)
	l := newLab(t, size{backends: 2})
	services := func(backends []backend) (list []string) {
		for _, w := range ways {
			list = append(list, sctpService(w, backends))
		}
		return list
	}
	for _, b := range l.backends {
		startDaemon(t, b, "agent", configText("", "eth0", services(everyBackend(2))...))
	}
	for _, w := range ways {
		for i, b := range l.backends {
			at := w.at(i+1, sctpPort)
			if w.mode == "nat" {
				at = netip.AddrPortFrom(at.Addr(), sctpOwnPort)
			}
			serveKernelSCTP(t, b, at)
		}
	}
	d := startDaemon(t, l.director, "run", configText("eth0", "", services(everyBackend(2))...))
	d.waitForServers("find all servers up", model.HealthUp, "")
	type association struct {
		fd    int
		way   way
		first string
	}
	var open []association
	for _, w := range ways {
		var names []string
		for range 12 {
			fd, err := callKernelSCTP(l.client, netip.AddrPortFrom(w.vip(), sctpPort))
			if err != nil {
				t.Fatalf("%s: %v", w, err)
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
			a := association{fd: fd, way: w}
			if a.first, err = askKernelSCTP(fd, 10); err != nil {
				t.Fatalf("%s: %v", w, err)
			}
			names, open = append(names, a.first), append(open, a)
		}
		if who := slices.Compact(slices.Sorted(slices.Values(names))); len(who) < 2 {
			t.Errorf("%s: 12 associations are all on %q", w, who)
		}
	}
	goOn := func(what string) {
		for _, a := range open {
			for _, bytes := range []int{1, 1400, 20000} {
				if now, err := askKernelSCTP(a.fd, bytes); err != nil || now != a.first {
					t.Fatalf("%s: %s: a message of %d bytes is answered by %q (%v), the first was by %q", a.way, what, bytes, now, err, a.first)
				}
			}
		}
	}
	goOn("at first")
	d.edit(configText("eth0", "", services([]backend{{number: 1, state: "draining"}, {number: 2}})...))
	d.ready()
	goOn("a backend drains")
}

// needSCTP skips the test if the kernel has no SCTP. In a guest nothing is skipped.
func needSCTP(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	switch {
	case err == nil:
		_ = unix.Close(fd)
	case os.Getenv("WEIR_DEVICES") == "all":
		t.Fatalf("this guest's kernel has no SCTP: %v", err)
	default:
		t.Skipf("this kernel has no SCTP (%v): make test-guest has one that has", err)
	}
}

func sockaddrOf(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func socketSCTP(h *netlab.Host, a netip.AddrPort, use func(fd int) error) (fd int, err error) {
	family := unix.AF_INET6
	if a.Addr().Is4() {
		family = unix.AF_INET
	}
	err = h.Do(func() error {
		var failed error
		if fd, failed = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP); failed != nil {
			return failed
		}
		if failed = use(fd); failed != nil {
			return errors.Join(failed, unix.Close(fd))
		}
		return nil
	})
	return fd, err
}

// serveKernelSCTP answers each message by the host's name, on associations to one address.
func serveKernelSCTP(t *testing.T, h *netlab.Host, at netip.AddrPort) {
	t.Helper()
	fd, err := socketSCTP(h, at, func(fd int) error {
		return errors.Join(unix.Bind(fd, sockaddrOf(at)), unix.Listen(fd, 64))
	})
	if err != nil {
		t.Fatalf("serve SCTP at %v on %s: %v", at, h.Name, err)
	}
	t.Cleanup(func() { _ = unix.Shutdown(fd, unix.SHUT_RDWR); _ = unix.Close(fd) })
	go func() {
		for {
			peer, _, err := unix.Accept(fd)
			if err != nil {
				return
			}
			go func() {
				defer unix.Close(peer)
				buffer := make([]byte, 1<<16)
				for {
					n, _, flags, _, err := unix.Recvmsg(peer, buffer, nil, 0)
					if err != nil || n == 0 {
						return
					}
					if flags&unix.MSG_EOR == 0 {
						continue // the message's other part comes
					}
					if _, err := unix.Write(peer, []byte(h.Name)); err != nil {
						return
					}
				}
			}()
		}
	}()
}

func callKernelSCTP(h *netlab.Host, to netip.AddrPort) (int, error) {
	return socketSCTP(h, to, func(fd int) error {
		patience := unix.NsecToTimeval(20e9)
		return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience), unix.Connect(fd, sockaddrOf(to)))
	})
}

// askKernelSCTP sends a message of so many bytes, and returns who answers.
func askKernelSCTP(fd, bytes int) (string, error) {
	if _, err := unix.Write(fd, make([]byte, bytes)); err != nil {
		return "", fmt.Errorf("send: %w", err)
	}
	buffer := make([]byte, 256)
	n, err := unix.Read(fd, buffer)
	if err != nil || n == 0 {
		return "", fmt.Errorf("no answer: %w", err)
	}
	return string(buffer[:n]), nil
}
