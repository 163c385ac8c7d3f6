// Package echo is a server and a client that do as little as possible: each is one thread that
// makes system calls and waits in them, so that as little as possible of what is measured is their
// own work.
//
// They are processes of their own. The Go scheduler does not learn of their system calls: it would
// give their processor to others, and they would have to wait for one again.
package echo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime/debug"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/record"
)

// Length is the length of a request and of its answer.
const Length = 8

// Priority is the real-time priority of client and server.
const Priority = 1

// backlog is how many connections may wait to be answered.
const backlog = 128

// Result is what became of a client's requests. Times are nanoseconds.
type Result struct {
	Requests    int   `json:"requests"`
	Connections int   `json:"connections"`
	P50         int64 `json:"p50"`
	P99         int64 `json:"p99"`
}

// alone gives the calling goroutine a thread and that thread a CPU. Neither the collector
// interrupts it, nor processes without a real-time priority.
func alone(cpu int) error {
	debug.SetGCPercent(-1)
	_, err := netlab.OnCPU(cpu)
	if err == nil {
		_, err = netlab.Urgent(Priority)
	}
	return err
}

// Serve answers requests at a port, of one connection after the other, until it is killed.
func Serve(port uint16, cpu int) error {
	if err := alone(cpu); err != nil {
		return err
	}
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if err := errors.Join(unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptInt(listener, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.Bind(listener, &unix.SockaddrInet4{Port: int(port)}), unix.Listen(listener, backlog)); err != nil {
		return fmt.Errorf("listen at port %d: %w", port, err)
	}
	var buffer [Length]byte
	for {
		connection, _, errno := syscall.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), 0, 0, 0, 0, 0)
		if errno == unix.EINTR || errno == unix.ECONNABORTED {
			continue
		}
		if errno != 0 {
			return fmt.Errorf("accept: %w", errno)
		}
		for receive(connection, &buffer) == nil && send(connection, &buffer) == nil {
		}
		_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE, connection, 0, 0)
	}
}

// Ask sends requests for a while, each when the previous one was answered: over one connection, or
// over a connection each, whose opening is part of what is measured.
func Ask(to netip.AddrPort, connections bool, duration time.Duration, cpu int) (Result, error) {
	if err := alone(cpu); err != nil {
		return Result{}, err
	}
	c := &client{to: unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.Addr().As4()}}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&c.to.Port))[:], to.Port())
	ask := c.ask
	if connections {
		ask = c.connectAndAsk
	} else if err := c.connect(); err != nil {
		return Result{}, err
	}
	times := make([]int64, 0, int(duration/(2*time.Microsecond))+1)
	for end := time.Now().Add(duration); ; {
		began := time.Now()
		if len(times) == cap(times) || len(times) > 0 && began.After(end) {
			break
		}
		err := ask()
		took := time.Since(began)
		if err != nil {
			return Result{}, fmt.Errorf("request %d: %w", len(times)+1, err)
		}
		times = append(times, int64(took))
		if connections {
			if err := c.reset(); err != nil {
				return Result{}, err
			}
		}
	}
	if !connections {
		if err := c.reset(); err != nil {
			return Result{}, err
		}
	}
	return Result{Requests: len(times), Connections: c.opened, P50: record.Rank(times, 50), P99: record.Rank(times, 99)}, nil
}

// client asks over one connection at a time.
type client struct {
	to         unix.RawSockaddrInet4
	connection uintptr
	opened     int
	text       [Length]byte
	number     uint64 // of the request, which is its text
}

func (c *client) connect() error {
	fd, _, errno := syscall.RawSyscall(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if errno != 0 {
		return fmt.Errorf("socket: %w", errno)
	}
	c.connection = fd
	one := int32(1)
	_, _, errno = syscall.RawSyscall6(unix.SYS_SETSOCKOPT, fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, uintptr(unsafe.Pointer(&one)), 4, 0)
	if errno != 0 {
		return fmt.Errorf("TCP_NODELAY: %w", errno)
	}
	for {
		_, _, errno := syscall.RawSyscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&c.to)), unsafe.Sizeof(c.to))
		if errno == unix.EISCONN { // the call was interrupted, and connecting went on
			errno = 0
		}
		if errno == 0 {
			c.opened++
			return nil
		}
		if errno != unix.EINTR && errno != unix.EALREADY {
			return fmt.Errorf("connect: %w", errno)
		}
	}
}

// errWrong says that an answer is not what was asked.
var errWrong = errors.New("the answer is another request's")

func (c *client) ask() error {
	c.number++
	binary.NativeEndian.PutUint64(c.text[:], c.number)
	if err := send(c.connection, &c.text); err != nil {
		return err
	}
	var answer [Length]byte
	if err := receive(c.connection, &answer); err != nil {
		return err
	}
	if answer != c.text {
		return errWrong
	}
	return nil
}

func (c *client) connectAndAsk() error {
	if err := c.connect(); err != nil {
		return err
	}
	return c.ask()
}

// reset ends the connection at once: nothing of it is under way when the next one begins, and no
// host remembers it.
func (c *client) reset() error {
	linger := unix.Linger{Onoff: 1}
	if err := unix.SetsockoptLinger(int(c.connection), unix.SOL_SOCKET, unix.SO_LINGER, &linger); err != nil {
		return fmt.Errorf("SO_LINGER: %w", err)
	}
	_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE, c.connection, 0, 0)
	return nil
}

func send(fd uintptr, text *[Length]byte) error {
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(text)), Length, unix.MSG_NOSIGNAL, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return fmt.Errorf("send: %w", errno)
		case n != Length:
			return io.ErrShortWrite
		default:
			return nil
		}
	}
}

// receive waits for a whole text.
func receive(fd uintptr, text *[Length]byte) error {
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(text)), Length, unix.MSG_WAITALL, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return fmt.Errorf("receive: %w", errno)
		case n == 0:
			return io.EOF
		case n != Length:
			return io.ErrUnexpectedEOF
		default:
			return nil
		}
	}
}
