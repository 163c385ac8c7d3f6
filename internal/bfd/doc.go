// Package bfd tells routers within milliseconds that a director's datapath, or the
// host it is on, is gone: Bidirectional Forwarding Detection in asynchronous mode
// (RFC 5880) over one hop (RFC 5881) and over several (RFC 5883).
//
// From the bottom to the top:
//
//   - [Packet] is what is on the wire. [Parse] refuses what RFC 5880 6.8.6 says must
//     be refused, and names the reason.
//   - [Machine] is one session's state machine and timers. It is told the time and
//     what was received, and says what is to be sent: no clock, no socket.
//   - [Speaker] owns the sockets and all machines in one goroutine, and looks after
//     the datapath: a session is held Down while what it stands for does not forward.
//   - [Serve] lets other processes say over a unix socket which sessions there are
//     to be, and see how they are. [Keeper] is that other process's side: it starts
//     the process where none runs.
//
// The process that speaks BFD is not the one that is the control plane: it must go on
// while that one is replaced, and must not wait for it. So it does not need to be told
// anything more once it has its sessions, until their time is over.
package bfd
