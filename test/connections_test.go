package test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// connections are TCP connections of one client that ask now and then, and check the answers: each
// has data of its own seed.
type connections struct {
	t       *testing.T
	stop    chan struct{}
	running sync.WaitGroup
	ended   func() // waits until no connection asks
	asked   atomic.Uint64
	mu      sync.Mutex
	broken  []string
}

// connect opens this many connections through each way.
func connect(t *testing.T, l *lab, ways []way, each int) *connections {
	t.Helper()
	c := &connections{t: t, stop: make(chan struct{})}
	c.ended = sync.OnceFunc(func() {
		close(c.stop)
		c.running.Wait()
	})
	t.Cleanup(c.ended)
	for _, w := range ways {
		for n := range each {
			conn, err := l.client.DialContext(t.Context(), "tcp", fmt.Sprintf("%s:7", w.vip()))
			if err != nil {
				t.Fatalf("%s: connection %d: %v", w, n, err)
			}
			c.running.Go(func() { c.talk(conn, w, uint64(n)) })
		}
	}
	return c
}

// talk asks while the load goes on.
func (c *connections) talk(conn net.Conn, w way, seed uint64) {
	defer conn.Close()
	r := rand.New(rand.NewPCG(seed, 7))
	for turn := uint64(0); ; turn++ {
		select {
		case <-c.stop:
			return
		case <-time.After(time.Duration(300+r.IntN(400)) * time.Millisecond): // a pace that many connections can keep
		}
		if err := ask(conn, r, turn); err != nil {
			c.mu.Lock()
			c.broken = append(c.broken, fmt.Sprintf("%s %s, from %s: turn %d: %v", time.Now().Format(time.RFC3339Nano), w, conn.LocalAddr(), turn, err))
			c.mu.Unlock()
			return
		}
		c.asked.Add(1)
	}
}

// ask sends some data and wants the same back.
func ask(conn net.Conn, r *rand.Rand, turn uint64) error {
	data := binary.BigEndian.AppendUint64(nil, turn)
	for len(data) < 8+8*r.IntN(64) {
		data = binary.BigEndian.AppendUint64(data, r.Uint64())
	}
	_ = conn.SetDeadline(time.Now().Add(45 * time.Second)) // the connection is open
	if _, err := conn.Write(data); err != nil {
		return err
	}
	back := make([]byte, len(data))
	if _, err := io.ReadFull(conn, back); err != nil {
		return err
	}
	if !bytes.Equal(back, data) {
		return fmt.Errorf("%d bytes came back as others", len(data))
	}
	return nil
}

// more waits until the connections have asked that many times more.
func (c *connections) more(n uint64) {
	c.t.Helper()
	before := c.asked.Load()
	waitFor(c.t, "the connections to go on", func() bool { return c.asked.Load() >= before+n })
}

// wantWhole ends the load, and claims that no connection is broken.
func (c *connections) wantWhole() {
	c.t.Helper()
	c.ended()
	for i, b := range c.broken {
		if i == 10 {
			break
		}
		c.t.Error(b)
	}
	if len(c.broken) > 0 {
		c.t.Errorf("%d connections broke", len(c.broken))
	}
	c.t.Logf("%d requests were answered", c.asked.Load())
}
