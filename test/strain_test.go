package test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// An overloaded server that accepts no connections gets fewer of them, by what its agent sees, and
// its share again when it accepts them. Open connections stay.
//
//	client --- router --- switch --- director, director2
//	                             --- backend1, backend2, backend3
//	                             --- store (an etcd)
func TestOverloadedBackendKeepsAPart(t *testing.T) {
	t.Parallel()
	w := way{mode: "gue"}
	l := newGroupLab(t)
	const port = 81 // of the checked listener: connections to the overloaded one would fail, too
	for i := range l.backends {
		l.healthy(t, i, port)
	}
	l.apply(t, w.service("tcp", fmt.Sprint(linesPort), everyBackend(3))+
		fmt.Sprintf("  health: {kind: tcp, port: %d, interval: 50ms, fall: 2, passive: {pace: 1s}}\n", port))
	for _, d := range l.directors {
		d.waitHealth("up", "up", "up")
	}
	var sessions []*session
	for range 40 {
		sessions = append(sessions, l.open(t, w))
	}
	l.stay(t, sessions, "at first")
	l.waitShare(t, 33)
	end := l.servers[0].overload(t)
	var over atomic.Bool
	tried := make(chan int)
	go func() {
		n := 0
		for ; !over.Load(); n++ {
			l.try(w.vip())
		}
		tried <- n
	}()
	l.waitShare(t, 20) // half of it
	l.stay(t, sessions, "while backend1 is overloaded")
	if why := on(t, l.director, weir, "backends", "--socket", l.directors[0].socket); !strings.Contains(why, "find no room; it keeps 4/8 of its share") {
		t.Errorf("weir backends does not say why backend1 has less than its share:\n%s", why)
	}
	over.Store(true)
	if n := <-tried; n < 10 {
		t.Errorf("%d connections were tried, which is no overload", n)
	}
	end()
	l.waitShare(t, 33)
	l.stay(t, sessions, "in the end")
}

// A UDP server that does not read, and whose buffer is full, gets fewer flows.
//
//	client --- router --- switch --- director, director2
//	                             --- backend1, backend2, backend3
//	                             --- store (an etcd)
func TestOverloadedReceiverKeepsAPart(t *testing.T) {
	t.Parallel()
	w := way{mode: "gue"}
	l := newGroupLab(t)
	const port = 81
	var first *datagramReader
	for i, b := range l.backends {
		l.healthy(t, i, port)
		if r := readDatagrams(t, b); i == 0 {
			first = r
		}
	}
	l.apply(t, w.service("udp", fmt.Sprint(linesPort), everyBackend(3))+
		fmt.Sprintf("  health: {kind: tcp, port: %d, interval: 50ms, fall: 2, passive: {pace: 1s}}\n", port))
	for _, d := range l.directors {
		d.waitHealth("up", "up", "up")
	}
	l.waitShare(t, 33)
	first.overload(t)
	var over atomic.Bool
	sent := make(chan int)
	go func() {
		n := 0
		for ; !over.Load(); n++ {
			l.datagram(w.vip())
			time.Sleep(time.Millisecond) // a thousand a second are no flood
		}
		sent <- n
	}()
	l.waitShare(t, 20) // half of it
	over.Store(true)
	t.Logf("%d datagrams were sent, each of a flow of its own", <-sent)
	first.busy.Unlock()
	l.waitShare(t, 33)
}

// waitShare waits until both directors give backend1 this percentage of the slots. Agents report
// every 15 s, and each step of a reduction waits for a report that has seen the previous step.
func (l *groupLab) waitShare(t *testing.T, percent int) {
	t.Helper()
	netlab.WaitUpTo(t, 3*time.Minute, fmt.Sprintf("both directors to give backend1 %d %% of the slots", percent), func() bool {
		return l.share() == [2]int{percent, percent}
	})
}

// datagramReader is a UDP server.
type datagramReader struct {
	conn *net.UDPConn
	busy sync.Mutex // held while the server reads nothing
}

// overload makes the server read nothing, with the smallest buffer that the kernel gives.
func (r *datagramReader) overload(t *testing.T) {
	t.Helper()
	r.busy.Lock()
	if err := r.conn.SetReadBuffer(1); err != nil {
		t.Fatal(err)
	}
}

// readDatagrams lets a host receive all clients' datagrams.
func readDatagrams(t *testing.T, h *netlab.Host) *datagramReader {
	t.Helper()
	conn, err := h.ListenPacket("udp", fmt.Sprintf(":%d", linesPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r := &datagramReader{conn: conn.(*net.UDPConn)}
	go func() {
		for buffer := make([]byte, 2048); ; {
			if _, _, err := conn.ReadFrom(buffer); err != nil {
				return
			}
			r.busy.Lock()
			//lint:ignore SA2001 it waits until nobody holds it
			r.busy.Unlock()
		}
	}()
	return r
}

// datagram sends a datagram of a new flow.
func (l *groupLab) datagram(vip netip.Addr) {
	_ = l.client.Do(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(vip, linesPort).String())
		if err == nil {
			_, err = conn.Write(make([]byte, 500))
			conn.Close()
		}
		return err
	})
}

// overload makes the server accept nothing, and leaves room for one connection, until the
// function that it returns is called.
func (s *lineServer) overload(t *testing.T) (end func()) {
	t.Helper()
	s.busy.Lock()
	raw, err := s.listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	resize := func(room int) {
		t.Helper()
		var failed error
		if err := raw.Control(func(fd uintptr) { failed = unix.Listen(int(fd), room) }); err != nil || failed != nil {
			t.Fatal("give the queue another size:", err, failed)
		}
	}
	resize(0)
	return func() {
		resize(1024)
		s.busy.Unlock()
	}
}

// try tries to open a connection, and closes it.
func (l *groupLab) try(vip netip.Addr) {
	_ = l.client.Do(func() error {
		dialer := net.Dialer{Timeout: 100 * time.Millisecond}
		conn, err := dialer.Dial("tcp", netip.AddrPortFrom(vip, linesPort).String())
		if err == nil {
			conn.Close()
		}
		return err
	})
}
