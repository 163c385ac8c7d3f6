package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir.io/weir/lab/process"
)

// How requests are made: one per interval, over a connection of its own, and given up after that
// long. If a connection's first packet is lost, it is sent again after a second.
const (
	requestEvery = 2 * time.Millisecond
	giveUp       = 5 * time.Second
	late         = 900 * time.Millisecond // a packet of it was lost
	mostStories  = 10
)

// The client's ports.
const firstPort, ports = 2048, 60_000

// Requests are made by the client all the time.
type Requests struct {
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	made   int       // those that have ended
	done   []request // the last ones
	open   map[int]time.Time
	failed []failure
}

// failure is a request that was not answered as it should.
type failure struct {
	port  uint16 // the client's
	began time.Time
	took  time.Duration
	why   error
}

// request is a request that has ended.
type request struct {
	began time.Time
	took  time.Duration
	ok    bool
}

// Request begins to make requests.
func (e *Edge) Request(ctx context.Context) *Requests {
	ctx, stop := context.WithCancel(ctx)
	r := &Requests{stop: stop, open: map[int]time.Time{}}
	r.running.Go(func() {
		tick := time.NewTicker(requestEvery)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				r.running.Go(func() { r.one(e, n) })
			}
		}
	})
	return r
}

// one makes a request.
func (r *Requests) one(e *Edge, n int) {
	began := time.Now()
	r.mu.Lock()
	r.open[n] = began
	r.mu.Unlock()
	port := firstPort + uint16(n%ports)
	err := e.ask(port)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, n)
	r.made++
	r.done = half(append(r.done, request{began, time.Since(began), err == nil}))
	if err != nil {
		r.failed = append(r.failed, failure{port, began, time.Since(began), err})
	}
}

// ask asks the VIP for a backend's name, from a port of the client's. It uses ports one after the
// other, so that it is known which connection is which request's.
func (e *Edge) ask(from uint16) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), giveUp)
	defer cancel()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{Port: int(from)}}
	var conn net.Conn
	if err := e.client.Do(func() error {
		conn, err = dialer.DialContext(ctx, "tcp4", net.JoinHostPort(vip.String(), strconv.Itoa(port)))
		return err
	}); err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(giveUp)); err != nil {
		return err
	}
	name, err := io.ReadAll(conn)
	if err == nil && !strings.HasPrefix(string(name), "backend") {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// remembered is how many events are kept at least: more than ten minutes of requests, so that hours
// of them take no more memory than minutes.
const remembered = 1 << 19

// half drops the first half of a list that has reached twice as many.
func half[T any](list []T) []T {
	if len(list) < 2*remembered {
		return list
	}
	return slices.Clone(list[remembered:])
}

// Failed returns how many requests have failed so far, of those that began since then.
func (r *Requests) Failed(since time.Time) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.failed {
		if !one.began.Before(since) {
			n++
		}
	}
	return n
}

// Late returns how many of those had a lost packet.
func (r *Requests) Late(since time.Time) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.done {
		if one.ok && one.took > late && !one.began.Before(since) {
			n++
		}
	}
	return n
}

// Made returns how many have ended.
func (r *Requests) Made() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made
}

// Ended waits until all requests that began before a time have ended.
func (r *Requests) Ended(ctx context.Context, before time.Time) error {
	return until(ctx, "requests to end", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, began := range r.open {
			if began.Before(before) {
				return false
			}
		}
		return true
	})
}

// Stories tells what became of the packets of the first requests that have failed since then.
func (e *Edge) Stories(r *Requests, since time.Time) (told []string) {
	r.mu.Lock()
	failed := slices.Clone(r.failed)
	r.mu.Unlock()
	for _, f := range failed {
		if f.began.Before(since) || len(told) == mostStories {
			continue
		}
		told = append(told, fmt.Sprintf("%s port %d, %.0f ms: %v: %s", f.began.Format("15:04:05.000"), f.port,
			f.took.Seconds()*1e3, f.why, e.seen.story(f.port, f.began)))
	}
	return told
}

// lastHit returns when the last request with a lost packet began, of those since then. It is true
// if all requests that began before until have ended or are late.
func (r *Requests) lastHit(since, until time.Time) (at time.Time, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hit := func(began time.Time) {
		if !began.Before(since) && began.After(at) {
			at = began
		}
	}
	for _, one := range r.done {
		if one.took > late || !one.ok {
			hit(one.began)
		}
	}
	for _, began := range r.open {
		if time.Since(began) > late {
			hit(began)
		} else if began.Before(until) {
			return at, false
		}
	}
	return at, true
}

// Close ends the requests, and waits for those that are under way.
func (r *Requests) Close() {
	r.stop()
	r.running.Wait()
}

// warmUp is how long connections send before they are measured.
const warmUp = 500 * time.Millisecond

// Load sends as much as gets through, over that many connections, and returns how many bytes per
// second came to backends.
func (e *Edge) Load(ctx context.Context, connections int, duration time.Duration) (float64, error) {
	stop, err := e.Flood(ctx, connections)
	if err != nil {
		return 0, err
	}
	defer stop()
	began, before := time.Now(), e.Got()
	if err := process.Sleep(ctx, duration); err != nil {
		return 0, err
	}
	return float64(e.Got()-before) / time.Since(began).Seconds(), nil
}

// Flood begins to send as much as gets through, over that many connections, and returns when they
// have warmed up. It sends until it is stopped.
func (e *Edge) Flood(ctx context.Context, connections int) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	var open []*net.TCPConn
	stop = func() {
		cancel()
		running.Wait()
		for _, conn := range open {
			_ = conn.Close()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	// All connections are opened before one sends: later ones would find the cables full.
	for range connections {
		conn, err := e.client.DialContext(ctx, "tcp4", net.JoinHostPort(vip.String(), strconv.Itoa(port)))
		if err != nil {
			return nil, fmt.Errorf("open a connection: %w", err)
		}
		tcp := conn.(*net.TCPConn)
		open = append(open, tcp)
		// Packets under way at the end are useless, and would fill the cables in the
		// next measurement.
		if err := errors.Join(tcp.SetLinger(0), tcp.SetWriteBuffer(1<<16)); err != nil {
			return nil, fmt.Errorf("prepare a connection: %w", err)
		}
	}
	for _, conn := range open {
		running.Go(func() { fill(ctx, conn) })
	}
	return stop, process.Sleep(ctx, warmUp)
}

// fill sends until the context ends.
func fill(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.SetWriteDeadline(time.Now()) })()
	for text := make([]byte, 1<<16); ; {
		if _, err := conn.Write(text); err != nil {
			return
		}
	}
}

// Got is how many bytes have come to all backends.
func (e *Edge) Got() (bytes uint64) {
	for _, b := range e.Backends {
		bytes += b.got.Load()
	}
	return bytes
}
