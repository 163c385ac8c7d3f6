package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// DialContext connects from the host. The address must be a literal: names are
// not looked up in a lab. It fits [net/http.Transport].
func (h *Host) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = h.Do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen listens on the host.
func (h *Host) Listen(network, address string) (listener net.Listener, err error) {
	err = h.Do(func() error {
		return UntilFree(func() error {
			listener, err = net.Listen(network, address)
			return err
		})
	})
	return listener, err
}

// ListenPacket listens for datagrams on the host.
func (h *Host) ListenPacket(network, address string) (conn net.PacketConn, err error) {
	err = h.Do(func() error {
		return UntilFree(func() error {
			conn, err = net.ListenPacket(network, address)
			return err
		})
	})
	return conn, err
}

// A socket that was closed is still there in a child process between its fork and its exec, and so is
// its port. Tests start many processes beside each other.
const (
	inUseLooks = 100
	inUsePause = 10 * time.Millisecond
)

// UntilFree repeats what fails because a port is in use.
func UntilFree(use func() error) (err error) {
	for range inUseLooks {
		if err = use(); !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			break
		}
		time.Sleep(inUsePause)
	}
	return err
}

// Serve handles each connection that comes to an address of the host, until the lab is closed.
func (h *Host) Serve(network, address string, handle func(net.Conn)) error {
	listener, err := h.Listen(network, address)
	if err != nil {
		return fmt.Errorf("serve on %s: %w", h.Name, err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}()
	return nil
}
