package edge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

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
	if err := rest(ctx, duration); err != nil {
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
	return stop, rest(ctx, warmUp)
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

// rest waits.
func rest(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration): // the measurement's duration
		return nil
	}
}

// Got is how many bytes have come to all backends.
func (e *Edge) Got() (bytes uint64) {
	for _, b := range e.Backends {
		bytes += b.got.Load()
	}
	return bytes
}
