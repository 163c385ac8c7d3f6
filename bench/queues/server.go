package queues

import (
	"container/heap"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// answerByte is a request, and its answer.
const answerByte = 'x'

// waiting is how many connections a server queues before it refuses one.
const waiting = 1 << 14

// servers each answer one request at a time, in the order of their connections. A request takes the
// service time: a timer and no work, so that requests wait for servers and not for the machine's
// cores. A timer that fires late is made up for: a queued request begins when the one before it
// should have ended. One thread runs all servers.
type servers struct {
	service time.Duration
	epoll   int
	free    map[int]time.Time // when a server will be free, by its listener
	busy    ends
	done    chan struct{}
	ended   chan error
}

// end is when a connection is to be answered.
type end struct {
	at time.Time
	fd int
}

// ends are a heap, the next one first.
type ends []end

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(end)) }
func (e *ends) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func newServers(service time.Duration) (*servers, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &servers{service: service, epoll: epoll, free: map[int]time.Time{}, done: make(chan struct{}), ended: make(chan error, 1)}, nil
}

// add makes a server at a host's address.
func (s *servers) add(h *netlab.Host, at netip.AddrPort) error {
	err := h.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		s.free[fd] = time.Time{}
		// Connections are accepted with their request: otherwise a client that is slow to send it
		// would hold up others.
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 5),
			unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}), unix.Listen(fd, waiting),
			unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}))
	})
	if err != nil {
		return fmt.Errorf("serve on %s at %v: %w", h.Name, at, err)
	}
	return nil
}

// close ends the servers, and says what went wrong.
func (s *servers) close() error {
	close(s.done)
	err := <-s.ended
	for fd := range s.free {
		unix.Close(fd)
	}
	for _, e := range s.busy {
		unix.Close(e.fd)
	}
	return errors.Join(err, unix.Close(s.epoll))
}

// longestWait bounds how long the end of the servers takes.
const longestWait = 50 * time.Millisecond

// run serves until the servers are closed.
func (s *servers) run() {
	free, err := netlab.Urgent(1)
	for err == nil {
		select {
		case <-s.done:
			free()
			s.ended <- nil
			return
		default:
		}
		wait := longestWait
		if len(s.busy) > 0 {
			wait = max(0, min(wait, time.Until(s.busy[0].at)))
		}
		err = s.turn(wait)
	}
	s.ended <- err
}

// turn accepts what comes within a time, and answers the requests that are due.
func (s *servers) turn(wait time.Duration) error {
	var events [64]unix.EpollEvent
	n, err := await(s.epoll, events[:], wait)
	if err != nil {
		return err
	}
	for _, event := range events[:n] {
		if err := s.accept(int(event.Fd)); err != nil {
			return err
		}
	}
	for now := time.Now(); len(s.busy) > 0 && !s.busy[0].at.After(now); {
		fd := heap.Pop(&s.busy).(end).fd
		var text [2]byte
		if n, err := unix.Read(fd, text[:]); err == nil && n == 1 {
			_, _ = unix.Write(fd, text[:1]) // a client that misses the answer reports it
		}
		unix.Close(fd)
	}
	return nil
}

// accept puts all waiting connections into their server's queue.
func (s *servers) accept(listener int) error {
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
			continue
		case err != nil:
			return fmt.Errorf("accept: %w", err)
		}
		begins := time.Now()
		if free := s.free[listener]; free.After(begins) {
			begins = free
		}
		s.free[listener] = begins.Add(s.service)
		heap.Push(&s.busy, end{s.free[listener], fd})
	}
}

// await waits for events. The milliseconds of epoll itself are too coarse.
func await(epoll int, events []unix.EpollEvent, wait time.Duration) (int, error) {
	timeout := unix.NsecToTimespec(int64(wait))
	_, err := unix.Ppoll([]unix.PollFd{{Fd: int32(epoll), Events: unix.POLLIN}}, &timeout, nil)
	n := 0
	if err == nil {
		n, err = unix.EpollWait(epoll, events, 0)
	}
	if err != nil && !errors.Is(err, unix.EINTR) {
		return 0, fmt.Errorf("epoll: %w", err)
	}
	return max(n, 0), nil
}
