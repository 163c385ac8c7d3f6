package test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Ports of the client that are reused, and that no other connection has: they are below those that
// the kernel chooses.
const (
	serverCloses = 20001
	clientResets = 20002
	clientCloses = 20003
	severalVIPs  = 20004
)

// usesPortsAgain connects from the same port as before, whichever end has closed the connection and
// whichever kernel still remembers it (TIME_WAIT), and to several VIPs at once.
func (l *redirectLab) usesPortsAgain(t *testing.T) {
	l.client.Sysctl("net.ipv4.tcp_tw_reuse", "1")
	again := func(t *testing.T, six bool, port int, connection string, end func(t *testing.T, conn *net.TCPConn)) {
		t.Helper()
		l.bypasses(t, 5, func() {
			for range 5 {
				conn := l.dialFrom(t, six, port, clientsWeb)
				answers(t, conn, connection)
				end(t, conn)
			}
		})
	}
	bothFamilies(t, func(t *testing.T, six bool) {
		t.Run("the server has closed", func(t *testing.T) {
			again(t, six, serverCloses, "close", func(t *testing.T, conn *net.TCPConn) {
				if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
					t.Errorf("the server ends with %q and %v", rest, err)
				}
				_ = conn.Close()
			})
		})
		t.Run("the client has reset", func(t *testing.T) {
			again(t, six, clientResets, "keep-alive", func(t *testing.T, conn *net.TCPConn) {
				if err := conn.SetLinger(0); err != nil {
					t.Error(err)
				}
				_ = conn.Close()
			})
		})
		t.Run("several VIPs", func(t *testing.T) {
			l.bypasses(t, 2, func() {
				web := l.dialFrom(t, six, severalVIPs, clientsWeb)
				echo := l.dialFrom(t, six, severalVIPs, clientsEcho)
				said := make([]byte, 4)
				if _, err := echo.Write([]byte("back")); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(echo, said); err != nil || string(said) != "back" {
					t.Errorf("the echo is %q: %v", said, err)
				}
				answers(t, web, "keep-alive")
				_, _ = web.Close(), echo.Close()
			})
		})
	})
	// The kernel uses such a port again after a second: both families wait together.
	t.Run("the client has closed", func(t *testing.T) {
		l.bypasses(t, 4, func() {
			for range 2 {
				for _, six := range []bool{false, true} {
					conn := l.dialFrom(t, six, clientCloses, clientsWeb)
					answers(t, conn, "keep-alive")
					if err := conn.CloseWrite(); err != nil {
						t.Fatal(err)
					}
					if _, err := io.ReadAll(conn); err != nil {
						t.Fatal(err)
					}
					_ = conn.Close()
				}
			}
		})
	})
}

// fromPort connects from a port that other sockets may use, too.
func fromPort(port int) net.Dialer {
	return net.Dialer{LocalAddr: &net.TCPAddr{Port: port}, Timeout: 10 * time.Second, Control: reusesAddresses}
}

// dialFrom connects to a service from one of the client's ports, as soon as the kernel allows it.
func (l *redirectLab) dialFrom(t *testing.T, six bool, port int, to redirectService) *net.TCPConn {
	t.Helper()
	return l.dialAddressFrom(t, six, port, to.at(six))
}

// dialAddressFrom is dialFrom to any address.
func (l *redirectLab) dialAddressFrom(t *testing.T, six bool, port int, to string) *net.TCPConn {
	t.Helper()
	dialer := fromPort(port)
	var conn net.Conn
	waitFor(t, "a port to be free again", func() bool {
		err := l.client.Do(func() (err error) {
			conn, err = dialer.DialContext(t.Context(), map[bool]string{false: "tcp4", true: "tcp6"}[six], to)
			return err
		})
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.EADDRINUSE) {
			t.Fatal(err)
		}
		return err == nil
	})
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// reusesAddresses lets a socket have a port that another socket of the host has.
func reusesAddresses(_, _ string, c syscall.RawConn) error {
	var failed error
	return errors.Join(c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }), failed)
}

// answers lets a web server answer a request (the connection's last with "close"), and returns its
// name.
func answers(t *testing.T, conn net.Conn, connection string) string {
	t.Helper()
	if _, err := io.WriteString(conn, "GET /name HTTP/1.1\r\nHost: web\r\nConnection: "+connection+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	name, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("the server answers %s: %v", response.Status, err)
	}
	return string(name)
}
