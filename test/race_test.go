package test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// A race that no ring can win: a SYN went to the old owner, the ring changes, the SYN is sent again
// to the new owner, and then the client answers the old one's SYN-ACK. The new owner has a request
// of its own with the same addresses and ports, and must not take the answer for its own: its
// kernel would reset the connection.
//
//	client --- router --- switch --- director
//	                             --- backend1, then backend2
//
// The test holds both SYN-ACKs until the moment of the race.
func TestAnswerToTheOldOwner(t *testing.T) {
	t.Parallel()
	for _, w := range gueWays[:2] {
		t.Run(w.String(), func(t *testing.T) {
			l := newChanceLab(t, "1", "")
			s, held := l.mustRace(t, w)
			if got := s.ask(t); got != "backend1" {
				t.Errorf("%s has the connection, the client answered backend1", got)
			}
			if n := l.count(t, "passed_on", l.agents[1]); n == 0 {
				t.Error("backend2 sent nothing on")
			}
			// Now the other SYN-ACK, which the client answers with the numbers of its connection.
			before := l.count(t, "passed_on", l.agents[1])
			held.release(t)
			waitFor(t, "backend2 to send on what the client says to its SYN-ACK", func() bool {
				return l.count(t, "passed_on", l.agents[1]) > before
			})
			for range 3 {
				if got := s.ask(t); got != "backend1" {
					t.Errorf("%s has the connection, the client answered backend1", got)
				}
			}
			if n := l.servers[1].accepted.Load(); n > 0 {
				t.Errorf("backend2's server got %d connections", n)
			}
			if n := l.count(t, "decap_last_resort"); n > 0 {
				t.Errorf("%d packets found nobody", n)
			}
		})
	}
	// All hosts of the lab share one kernel, and so one secret for their cookies: either of them
	// may take the connection. Separate hosts would not.
	t.Run("cookies", func(t *testing.T) {
		l := newChanceLab(t, "2", "")
		s, held := l.mustRace(t, gueWays[0])
		s.backend = s.ask(t)
		held.release(t)
		for range 3 {
			if got := s.ask(t); got != s.backend {
				t.Errorf("%s answers on a connection of %s", got, s.backend)
			}
		}
	})
	t.Run("breaks without second chance", func(t *testing.T) {
		l := newChanceLab(t, "1", "  sockets-elsewhere: true\n")
		s, _, err := l.race(t, gueWays[0])
		var got string
		if err == nil {
			got, err = s.tryAsk()
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%q answers (%v), although backend2 kept what it got: the race did not happen", got, err)
		}
	})
}

// race opens a connection in which the client has answered backend1's SYN-ACK, while backend2 has a
// request of the same connection and its SYN-ACK is held.
func (l *chanceLab) race(t *testing.T, w way) (*session, *holder, error) {
	t.Helper()
	l.direct(t, backend{number: 1}, backend{number: 2, state: "draining"})
	held := l.holdSYNACKs(t, w)
	type attempt struct {
		*session
		err error
	}
	opened := make(chan attempt, 1)
	go func() {
		s, err := l.connect(t, w)
		opened <- attempt{s, err}
	}()
	held.wait(t)
	l.running.edit(l.text(directorHost, backend{number: 1, state: "draining"}, backend{number: 2}))
	l.running.ready()
	// The client has got no SYN-ACK, and sends its SYN again after a second.
	waitFor(t, "the SYN to come to backend2", func() bool { return l.count(t, "decap_gue", l.agents[1]) > 0 })
	held.wait(t)
	held.deliverOnly(t, 0)
	select {
	case a := <-opened:
		return a.session, held, a.err
	case <-time.After(60 * time.Second):
		t.Fatal("the client does not answer backend1's SYN-ACK")
		return nil, nil, nil
	}
}

func (l *chanceLab) mustRace(t *testing.T, w way) (*session, *holder) {
	t.Helper()
	s, held, err := l.race(t, w)
	if err != nil {
		t.Fatal(err)
	}
	return s, held
}

// holder keeps SYN-ACKs from the client with a rule of its firewall, and has a copy of each.
type holder struct {
	client, router *netlab.Host
	in             int // packet socket that sees what comes to the client
	tcp            int // where the TCP header is in a frame
	cookies        bool
	frames         [][]byte
}

func (l *chanceLab) holdSYNACKs(t *testing.T, w way) *holder {
	t.Helper()
	h := &holder{client: l.client, router: l.router, tcp: 14 + 20, cookies: l.cookies == "2"}
	if w.inner6 {
		h.tcp = 14 + 40
	}
	h.filter(t, "")
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	err := l.client.Do(func() (err error) {
		if h.in, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(all)); err != nil {
			return err
		}
		short := unix.NsecToTimeval(int64(100 * time.Millisecond)) // between two looks at the deadline
		return unix.SetsockoptTimeval(h.in, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &short)
	})
	if err != nil {
		t.Fatalf("look at what comes to the client: %v", err)
	}
	t.Cleanup(func() { _ = unix.Close(h.in) })
	return h
}

// filter makes the client's firewall drop SYN-ACKs, all or by sequence number.
func (h *holder) filter(t *testing.T, which string) {
	t.Helper()
	on(t, h.client, "nft", "add table inet hold; "+
		"add chain inet hold in { type filter hook prerouting priority -300; }; flush chain inet hold in; "+
		"add rule inet hold in tcp flags & (syn | ack) == (syn | ack) "+which+" drop")
}

// wait waits for a SYN-ACK with a new sequence number. If cookies make the numbers, two hosts of
// one kernel have the same: then any SYN-ACK is enough.
func (h *holder) wait(t *testing.T) {
	t.Helper()
	b := make([]byte, 2048)
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); {
		n, err := unix.Read(h.in, b)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			t.Fatalf("look at what comes to the client: %v", err)
		}
		if n < h.tcp+20 || binary.BigEndian.Uint16(b[h.tcp:]) != linesPort || b[h.tcp+13]&0x3f != 0x12 {
			continue
		}
		if len(h.frames) == 0 || !bytes.Equal(b[h.tcp+4:h.tcp+8], h.frames[0][h.tcp+4:h.tcp+8]) || h.cookies {
			h.frames = append(h.frames, bytes.Clone(b[:n]))
			return
		}
	}
	t.Fatalf("no SYN-ACK comes to the client after %d", len(h.frames))
}

// ttl is the TTL of one of the SYN-ACKs, which are IPv4.
func (h *holder) ttl(i int) int { return int(h.frames[i][14+8]) }

// deliverOnly lets only one of the SYN-ACKs reach the client.
func (h *holder) deliverOnly(t *testing.T, i int) {
	t.Helper()
	h.filter(t, fmt.Sprintf("tcp sequence != %d", binary.BigEndian.Uint32(h.frames[i][h.tcp+4:])))
	h.deliver(t, h.frames[i])
}

// release lets all SYN-ACKs reach the client, and the last one at once.
func (h *holder) release(t *testing.T) {
	t.Helper()
	on(t, h.client, "nft", "delete table inet hold")
	h.deliver(t, h.frames[len(h.frames)-1])
}

// deliver sends a frame from the router to the client.
func (h *holder) deliver(t *testing.T, frame []byte) {
	t.Helper()
	err := h.router.Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		out, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer unix.Close(out)
		return unix.Sendto(out, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index})
	})
	if err != nil {
		t.Fatalf("send a frame to the client: %v", err)
	}
}
