package health

import (
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// connects says how the sockets are prepared of the checks that want a connection and
// nothing on it.
//
// Kind tcp ends its connections as all kinds do.
//
// Kind syn waits for a SYN-ACK and answers with an RST: the server's process never sees a
// connection. Linux holds the handshake's last ACK back, for 200 ms, where it expects the
// socket to send data soon (TCP_QUICKACK off; tcp_rcv_synsent_state_process in
// net/ipv4/tcp_input.c).
var connects = map[model.CheckKind]prepare{
	model.CheckTCP: reset,
	model.CheckSYN: func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0); err != nil {
			return err
		}
		return reset(fd)
	},
}

// reset makes closing the socket send an RST.
func reset(fd int) error {
	return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}
