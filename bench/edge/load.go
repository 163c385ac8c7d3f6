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

// Load sends all that gets through, over that many connections, and returns how many bytes
// per second came to backends.
func (e *Edge) Load(ctx context.Context, connections int, duration time.Duration) (float64, error) {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	// All are open before one sends: who comes later would find the cables full.
	var open []*net.TCPConn
	for range connections {
		conn, err := e.client.DialContext(ctx, "tcp4", net.JoinHostPort(vip.String(), strconv.Itoa(port)))
		if err != nil {
			return 0, fmt.Errorf("open a connection: %w", err)
		}
		defer conn.Close()
		// What is under way when it ends is of no use, and would fill the cables for the next
		// measurement.
		tcp := conn.(*net.TCPConn)
		if err := errors.Join(tcp.SetLinger(0), tcp.SetWriteBuffer(1<<16)); err != nil {
			return 0, fmt.Errorf("prepare a connection: %w", err)
		}
		open = append(open, tcp)
	}
	for _, conn := range open {
		running.Go(func() { fill(ctx, conn) })
	}
	if err := rest(ctx, warmUp); err != nil {
		return 0, err
	}
	began, before := time.Now(), e.got()
	if err := rest(ctx, duration); err != nil {
		return 0, err
	}
	return float64(e.got()-before) / time.Since(began).Seconds(), nil
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
	case <-time.After(duration): // what is measured lasts so long
		return nil
	}
}

// got is how many bytes have come to all backends.
func (e *Edge) got() (bytes uint64) {
	for _, b := range e.Backends {
		bytes += b.got.Load()
	}
	return bytes
}
