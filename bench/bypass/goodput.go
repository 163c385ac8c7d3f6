package bypass

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/lab/netlab"
)

// answer sends back what comes to a host's port, until the lab is closed.
func answer(h *netlab.Host) error {
	listener, err := h.Listen("tcp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return fmt.Errorf("serve on %s: %w", h.Name, err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buffer := make([]byte, 1<<16)
				for {
					n, err := conn.Read(buffer)
					if err != nil {
						return
					}
					if _, err := conn.Write(buffer[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return nil
}

// Load is the load of each client: requests that come back unchanged. A connection sends its next
// request when the one before it has come back.
type Load struct {
	Connections int // of each client at a time
	Size        int // bytes of a request
	PerRequest  bool
	Settle      time.Duration // before it is measured
	Duration    time.Duration
}

// Goodput is the outcome of a load.
type Goodput struct {
	Bytes   uint64 // of requests that came back
	Elapsed time.Duration
}

// Goodput puts a load on a way.
func (l *Links) Goodput(ctx context.Context, way string, load Load) (Goodput, error) {
	ctx, cancel := context.WithCancel(ctx)
	var done atomic.Uint64
	var running sync.WaitGroup
	ended := make(chan error, len(l.clients)*load.Connections)
	for _, h := range l.clients {
		for range load.Connections {
			running.Go(func() {
				if err := exchange(ctx, h, netip.AddrPortFrom(linkVIP(way), port), load, &done); ctx.Err() == nil {
					ended <- fmt.Errorf("%s: a connection of %s: %w", way, h.Name, err)
				}
			})
		}
	}
	var g Goodput
	err := pause(ctx, load.Settle, ended)
	if err == nil {
		began, before := time.Now(), done.Load()
		err = pause(ctx, load.Duration, ended)
		g = Goodput{Bytes: done.Load() - before, Elapsed: time.Since(began)}
	}
	cancel()
	running.Wait()
	return g, err
}

// pause waits, unless something ends it earlier.
func pause(ctx context.Context, duration time.Duration, ended chan error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-ended:
		return err
	case <-time.After(duration): // the measurement's duration
		return nil
	}
}

// exchange sends requests until the context ends, or something goes wrong.
func exchange(ctx context.Context, h *netlab.Host, to netip.AddrPort, load Load, done *atomic.Uint64) error {
	request, back := make([]byte, load.Size), make([]byte, load.Size)
	for i := range request {
		request[i] = byte(i)
	}
	for ctx.Err() == nil {
		if err := overOne(ctx, h, to, load, request, back, done); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// counter counts bytes as they come: if large requests were counted when they are whole, some would
// count that began before the measurement, and others would be missed.
type counter struct{ bytes *atomic.Uint64 }

func (c counter) Write(text []byte) (int, error) {
	c.bytes.Add(uint64(len(text)))
	return len(text), nil
}

var errOther = errors.New("something else came back")

// overOne uses one connection.
func overOne(ctx context.Context, h *netlab.Host, to netip.AddrPort, load Load, request, back []byte, done *atomic.Uint64) error {
	conn, err := h.DialContext(ctx, "tcp4", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	// Nothing of the connection must be under way, or remembered, in the next measurement.
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	for {
		if _, err := conn.Write(request); err != nil {
			return err
		}
		if _, err := io.ReadFull(io.TeeReader(conn, counter{done}), back); err != nil {
			return err
		}
		if back[len(back)-1] != request[len(request)-1] || back[0] != request[0] {
			return errOther
		}
		if load.PerRequest {
			return nil
		}
	}
}
