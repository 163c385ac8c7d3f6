package netlab

import (
	"context"
	"net"
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
		listener, err = net.Listen(network, address)
		return err
	})
	return listener, err
}

// ListenPacket listens for datagrams on the host.
func (h *Host) ListenPacket(network, address string) (conn net.PacketConn, err error) {
	err = h.Do(func() error {
		conn, err = net.ListenPacket(network, address)
		return err
	})
	return conn, err
}
