package queues

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/lab/netlab"
)

// A server answers one request at a time: if several come together, the last one waits for all
// others.
func TestRequestsQueue(t *testing.T) {
	host := netlab.ForTest(t).Host("host")
	const service, requests = 5 * time.Millisecond, 20
	s, err := newServers(service)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort("127.0.0.1:8000")
	if err := s.add(host, at); err != nil {
		t.Fatal(err)
	}
	go s.run()
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	// All come within a time that is short compared with their service time.
	r, err := run(host, at, Load{Rate: requests / service.Seconds() * 20, Duration: service / 20, Request: []byte{answerByte}, Seed: 1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	// The last of n has waited for n-1, and was served; it came after the first one.
	if least := time.Duration(r.Requests-2) * service; r.Requests < 2 || r.P99 < least {
		t.Errorf("of %d requests that came together one took %v at most, want %v at least", r.Requests, r.P99, least)
	}
}

// By every way a file takes the time that its server's link needs, and no other answer comes.
func TestFiles(t *testing.T) {
	t.Chdir("../..")
	const size, service, servers = 8 << 10, 25 * time.Millisecond, 4
	l, err := NewFiles(t.Context(), netlab.ForTest(t), servers, size, service)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	// Headers and a handshake add to the file, but less than its size.
	if l.service < service || l.service > 2*service || l.answer <= size || l.answer > 2*size {
		t.Errorf("a file of %d bytes for which its link needs %v comes in %d bytes and takes %v", size, service, l.answer, l.service)
	}
	for _, w := range Ways {
		r, err := l.Measure(t.Context(), w, 0.3, 0, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		// One frame may go at once, and the last one arrives before its time on the link has
		// passed.
		if least := l.service / 2; r.P50 < least {
			t.Errorf("%s: %d files took %v, want %v at least", w.Name, r.Requests, r.P50, least)
		}
		if err := l.client.Do(func() error { return l.fallsBack(w) }); err != nil {
			t.Errorf("%s: %v", w.Name, err)
		}
	}
}

// fallsBack makes a request over a connection that is not redirected, because the client has called
// a server directly from this port before. The calling thread must be in the client's namespace.
func (l *Lab) fallsBack(w *Way) error {
	from := net.TCPAddrFromAddrPort(netip.AddrPortFrom(address(client), 900))
	_, server := l.place(w, 0)
	for _, to := range []netip.Addr{server, vip} {
		conn, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", netip.AddrPortFrom(to, w.port).String())
		if err != nil {
			return err
		}
		_, err = conn.Write(l.request)
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, l.answer))
		}
		// The connection is reset, so that the port can be used again at once.
		if err := errors.Join(err, conn.(*net.TCPConn).SetLinger(0), conn.Close()); err != nil {
			return fmt.Errorf("ask %v: %w", to, err)
		}
	}
	return nil
}
