package health

import (
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// connects says how sockets are prepared for the checks that only connect.
//
// Kind syn waits for a SYN-ACK and answers with an RST: the server's process never sees a
// connection. Linux delays the handshake's last ACK for 200 ms if it expects the socket to send
// data soon (TCP_QUICKACK off; tcp_rcv_synsent_state_process in net/ipv4/tcp_input.c).
var connects = map[model.CheckKind]prepare{
	model.CheckTCP: func(int) error { return nil },
	model.CheckSYN: func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0) },
}

// reset makes closing the socket send an RST.
func reset(fd int) error {
	return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}
