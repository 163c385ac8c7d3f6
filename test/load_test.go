package test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// load is one client's traffic through one way that must not be disturbed: one lasting TCP
// connection, new ones all the time, and a stream of numbered datagrams, each of which must come
// back.
type load struct {
	t       *testing.T
	stop    chan struct{}
	running sync.WaitGroup
	sent    atomic.Uint64 // datagrams
	back    atomic.Uint64
	asked   atomic.Uint64 // over TCP
	broken  atomic.Uint64
}

// startLoad starts the load and waits until it flows. The backends need echo and echoStream.
func startLoad(t *testing.T, l *lab, w way) *load {
	t.Helper()
	load := &load{t: t, stop: make(chan struct{})}
	at := netip.AddrPortFrom(w.vip(), 7).String()
	flow, err := l.client.DialContext(t.Context(), "udp", at)
	if err != nil {
		t.Fatal(err)
	}
	largeBuffer(t, flow.(*net.UDPConn))
	load.running.Go(func() { load.send(flow) })
	load.running.Go(func() { load.receive(flow) })
	load.running.Go(func() { load.talk(l, at, 1<<62) })
	load.running.Go(func() { load.talk(l, at, 3) })
	waitFor(t, "the load to flow", func() bool { return load.back.Load() > 100 && load.asked.Load() > 100 })
	return load
}

func (l *load) ended() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// send sends 1,000 datagrams per second: few enough that no queue on their way fills while a
// process waits for the CPU.
func (l *load) send(flow net.Conn) {
	for tick := time.NewTicker(time.Millisecond); !l.ended(); <-tick.C {
		if _, err := flow.Write(binary.BigEndian.AppendUint64(nil, l.sent.Load())); err != nil {
			l.broken.Add(1)
			continue
		}
		l.sent.Add(1)
	}
}

// receive counts datagrams that come back, until all have or no more come.
func (l *load) receive(flow net.Conn) {
	defer flow.Close()
	buffer := make([]byte, 1500)
	for !l.ended() || l.back.Load() < l.sent.Load() {
		_ = flow.SetReadDeadline(time.Now().Add(2 * time.Second))
		_, err := flow.Read(buffer)
		switch {
		case err == nil:
			l.back.Add(1)
		case errors.Is(err, os.ErrDeadlineExceeded) && l.ended():
			return
		case !errors.Is(err, os.ErrDeadlineExceeded):
			l.broken.Add(1)
		}
	}
}

// talk asks over TCP connections, each for that many answers.
func (l *load) talk(lab *lab, at string, answers int) {
	for !l.ended() {
		conn, err := lab.client.DialContext(l.t.Context(), "tcp", at)
		if err != nil {
			l.broken.Add(1)
			continue
		}
		for n := 0; n < answers && !l.ended(); n++ {
			_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
			_, sent := conn.Write([]byte("ping"))
			_, received := io.ReadFull(conn, make([]byte, 4))
			if sent != nil || received != nil {
				l.broken.Add(1)
				break
			}
			l.asked.Add(1)
			time.Sleep(time.Millisecond) // a pace at which no queue fills
		}
		conn.Close()
	}
}

// wantUndisturbed ends the load, and claims that nothing of it was lost.
func (l *load) wantUndisturbed() {
	l.t.Helper()
	close(l.stop)
	l.running.Wait()
	if n := l.broken.Load(); n > 0 {
		l.t.Errorf("%d connections broke, of which %d requests were answered", n, l.asked.Load())
	}
	if sent, back := l.sent.Load(), l.back.Load(); back != sent {
		l.t.Errorf("of %d datagrams %d came back", sent, back)
	}
}

// more waits until the load has gone on for that many datagrams and requests.
func (l *load) more(n uint64) {
	l.t.Helper()
	back, asked := l.back.Load(), l.asked.Load()
	waitFor(l.t, "the load to go on", func() bool { return l.back.Load() > back+n && l.asked.Load() > asked+n/4 })
}
