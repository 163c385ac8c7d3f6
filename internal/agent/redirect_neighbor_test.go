package agent

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir.io/weir/lab/packet"
)

// When the kernel has sent a packet to a neighbor, later packets go there for a while, and the
// kernel is not asked. It is asked again after that time, after a second in which no packet has
// left, and when packets have to leave by another device.
func TestNeighborOfConnections(t *testing.T) {
	for _, c := range connections() {
		t.Run(c.service, func(t *testing.T) {
			h := newRedirectHost(t)
			data := c.sends(packet.ACK, 100)
			sent := slices.Concat([]byte("\x02\x00\x00\x00\x00\x07"), build(frame{ether}, data.out)[6:])
			isAsked := func() bool {
				verdict, out, _ := h.leaveWith(data.in, 0)
				if verdict == tcNext {
					packet.Equal(t, out, sent)
				}
				return verdict == tcRedirect
			}
			find := func() {
				t.Helper()
				if verdict, out, _ := h.leaveFrame(sent, h.mark()); verdict != tcNext || !bytes.Equal(out[:len(sent)], sent) {
					t.Fatalf("what the kernel sends has the verdict %d", int32(verdict))
				}
			}
			h.check(c.asks(), c.taken())
			if !isAsked() {
				t.Fatal("nobody asks the kernel for the first packet's neighbor")
			}
			waitFor(t, "a neighbor to be known", func() bool { find(); return !isAsked() })
			waitFor(t, "the kernel to be asked again", isAsked)
			other := c // a new one each time: a SYN that is sent again does not ask
			waitFor(t, "another connection to take the neighbor over", func() bool {
				other.client = netip.AddrPortFrom(c.client.Addr(), other.client.Port()+1)
				h.check(other.asks(), other.taken())
				find()
				verdict, out, _ := h.leaveWith(other.sends(packet.ACK, 100).in, 0)
				if verdict == tcNext {
					packet.Equal(t, out[:12], sent[:12])
				}
				h.forget(other)
				return verdict == tcNext
			})
			for what, change := range map[string]func(*redirectRedirectWay){
				"a silence":      func(way *redirectRedirectWay) { way.Seen -= uint64(2 * time.Second) },
				"another device": func(way *redirectRedirectWay) { way.Ifindex++ },
			} {
				waitFor(t, "a neighbor to be known before "+what, func() bool {
					find()
					was := h.changeWay(c, change)
					empty(t, h.Neighbors)
					asked := isAsked()
					h.changeWay(c, func(way *redirectRedirectWay) { *way = was })
					if !asked {
						t.Fatalf("after %s nobody asks the kernel", what)
					}
					return was.Neighbor != 0
				})
			}
			h.changeWay(c, func(way *redirectRedirectWay) { way.Ifindex++; way.Neighbor = 0 })
			find()
			h.changeWay(c, func(way *redirectRedirectWay) {
				if way.Neighbor != 0 {
					t.Errorf("the neighbor of another device is %#x", way.Neighbor)
				}
			})
		})
	}
}

// changeWay changes what is remembered of a connection's packets that leave, and returns what
// that was.
func (h *redirectHost) changeWay(c connection, change func(*redirectRedirectWay)) redirectRedirectWay {
	h.t.Helper()
	var way redirectRedirectWay
	if err := h.RedirectLeaving.Lookup(h.flow(c), &way); err != nil {
		h.t.Fatal(err)
	}
	was := way
	change(&way)
	if err := h.RedirectLeaving.Put(h.flow(c), way); err != nil {
		h.t.Fatal(err)
	}
	return was
}

// forget takes a connection out.
func (h *redirectHost) forget(c connection) {
	h.t.Helper()
	way := h.changeWay(c, func(*redirectRedirectWay) {})
	back := h.flow(c)
	back.Vip, back.VipPort = way.Peer, way.PeerPort
	if err := errors.Join(h.RedirectLeaving.Delete(h.flow(c)), h.RedirectArriving.Delete(back)); err != nil {
		h.t.Fatal(err)
	}
}
