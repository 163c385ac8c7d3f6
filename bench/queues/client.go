package queues

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/record"
)

// Load is the clients' load on servers: requests that come as a Poisson process, whatever became of
// earlier ones, over a connection each.
type Load struct {
	Rate     float64       // requests per second
	Settle   time.Duration // before requests are counted
	Duration time.Duration // of the time in which counted requests begin
	Request  []byte
	Seed     uint64
}

// Result is what became of the counted requests.
type Result struct {
	Requests int
	P50, P99 time.Duration // from when a request was due until its answer was there
	Late     time.Duration // 99th percentile of how late they began
	Degraded uint64        // how often a service fell back to round-robin, because reports of loads were missing
}

// patience is how long a client waits for the last answers.
const patience = 10 * time.Second

// request is a request that is under way.
type request struct {
	fd    int
	due   time.Time
	count bool
	sent  bool
	got   int
}

// run sends requests from a host, in one thread, and returns when all are answered. Answers have
// that many bytes.
func run(h *netlab.Host, to netip.AddrPort, load Load, answer int) (r Result, err error) {
	err = h.Do(func() error {
		r, err = open(to, load, answer)
		return err
	})
	return r, err
}

// opener begins requests and takes their answers.
type opener struct {
	load   Load
	to     *unix.SockaddrInet4
	answer int
	epoll  int
	random *rand.Rand
	open   map[int]*request // by descriptor
	took   []time.Duration
	late   []time.Duration
	buffer [1 << 14]byte
}

func open(to netip.AddrPort, load Load, answer int) (Result, error) {
	free, err := netlab.Urgent(1)
	if err != nil {
		return Result{}, err
	}
	defer free()
	o := &opener{load: load, to: &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}, answer: answer,
		random: rand.New(rand.NewPCG(load.Seed, 1)), open: map[int]*request{}}
	if o.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return Result{}, fmt.Errorf("epoll: %w", err)
	}
	defer unix.Close(o.epoll)
	defer func() {
		for fd := range o.open {
			unix.Close(fd)
		}
	}()
	if err := o.all(); err != nil {
		return Result{}, err
	}
	if len(o.took) == 0 {
		return Result{}, errors.New("no request was counted")
	}
	return Result{Requests: len(o.took), P50: record.Rank(o.took, 50), P99: record.Rank(o.took, 99), Late: record.Rank(o.late, 99)}, nil
}

// all begins requests when they are due, and waits for the answers.
func (o *opener) all() error {
	began := time.Now()
	counted := began.Add(o.load.Settle)
	end := counted.Add(o.load.Duration)
	due := began.Add(o.gap())
	for due.Before(end) || len(o.open) > 0 {
		now := time.Now()
		for ; due.Before(end) && !due.After(now); due = due.Add(o.gap()) {
			if err := o.start(due, due.After(counted)); err != nil {
				return err
			}
			now = time.Now()
		}
		wait := patience
		if due.Before(end) {
			wait = max(0, due.Sub(now))
		} else if now.After(end.Add(patience)) {
			return fmt.Errorf("%d requests were not answered within %v", len(o.open), patience)
		}
		if err := o.take(wait); err != nil {
			return err
		}
	}
	return nil
}

// gap is the time to the next request.
func (o *opener) gap() time.Duration {
	return time.Duration(o.random.ExpFloat64() / o.load.Rate * float64(time.Second))
}

// start opens a connection for a request.
func (o *opener) start(due time.Time, count bool) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	o.open[fd] = &request{fd: fd, due: due, count: count}
	// The connection is reset when it is done, so that no host remembers it for longer.
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return fmt.Errorf("SO_LINGER: %w", err)
	}
	if err := unix.Connect(fd, o.to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect: %w", err)
	}
	if count {
		o.late = append(o.late, time.Since(due))
	}
	event := unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(fd)}
	return unix.EpollCtl(o.epoll, unix.EPOLL_CTL_ADD, fd, &event)
}

// take waits for connections that are open, and for answers.
func (o *opener) take(wait time.Duration) error {
	var events [128]unix.EpollEvent
	n, err := await(o.epoll, events[:], wait)
	if err != nil {
		return err
	}
	for _, event := range events[:n] {
		if err := o.happened(o.open[int(event.Fd)]); err != nil {
			return err
		}
	}
	return nil
}

// happened takes the next step of a request.
func (o *opener) happened(r *request) error {
	if !r.sent {
		if _, err := unix.Write(r.fd, o.load.Request); err != nil {
			return fmt.Errorf("send a request: %w", err)
		}
		r.sent = true
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(r.fd)}
		return unix.EpollCtl(o.epoll, unix.EPOLL_CTL_MOD, r.fd, &event)
	}
	for {
		n, err := unix.Read(r.fd, o.buffer[:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return fmt.Errorf("receive an answer: %w", err)
		case n == 0:
			return fmt.Errorf("an answer ended after %d of %d bytes", r.got, o.answer)
		}
		if r.got += n; r.got > o.answer {
			return fmt.Errorf("an answer has %d bytes, want %d", r.got, o.answer)
		}
		if r.got == o.answer {
			if r.count {
				o.took = append(o.took, time.Since(r.due))
			}
			delete(o.open, r.fd)
			return unix.Close(r.fd)
		}
	}
}
