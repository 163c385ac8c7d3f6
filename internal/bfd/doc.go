// Package bfd tells routers within milliseconds that a director's datapath, or the
// host it is on, is gone: Bidirectional Forwarding Detection in asynchronous mode
// (RFC 5880) over one hop (RFC 5881) and over several (RFC 5883).
//
// From the bottom to the top:
//
//   - [Packet] is what is on the wire. [Parse] refuses what RFC 5880 6.8.6 says must
//     be refused, and names the reason.
//   - [Machine] is one session's state machine and timers. It is told the time and what was
//     received, and says what to send: no clock, no socket.
//   - [Speaker] owns the sockets and all machines in one goroutine, and watches the datapath: a
//     session is held Down while the datapath that it stands for does not forward.
//   - [Serve] lets other processes say over a unix socket which sessions they want, and see the
//     sessions' state. [Keeper] is the other process's side: it starts the BFD process if none
//     runs.
//
// The BFD process is not the control plane's process: it must go on while that one is replaced, and
// must not wait for it. So once it has its sessions it does not need to be told anything more,
// until their time is over.
package bfd
