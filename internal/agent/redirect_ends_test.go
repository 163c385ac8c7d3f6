package agent

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/lab/packet"
)

// ending is what comes and leaves at the end of a connection, and how long it may be silent then.
type ending struct {
	name    string
	steps   func(c connection) []hostStep
	timeout time.Duration
}

// final reports whether the connection is over for both sides.
func (e ending) final() bool { return e.timeout <= closedTimeout }

// comes is the step of a packet from the backend, so far from what the host has acknowledged.
func (c connection) comes(flags uint8, ahead int) hostStep {
	h := dataOf(flags)
	h.Seq += uint32(ahead)
	return arrivesAs("packet in", "", segment(c.backend, c.client, h), segment(c.vip, c.client, h))
}

func endings() []ending {
	const fin = packet.FIN | packet.ACK
	far := func(flags uint8) func(connection) []hostStep {
		return func(c connection) []hostStep {
			return []hostStep{c.comes(flags, -1<<31), c.comes(flags, 1<<20+1), c.comes(flags, 1<<30), c.comes(flags, -1<<20), c.comes(flags, -1<<16-1)}
		}
	}
	return []ending{
		{"open", func(connection) []hostStep { return nil }, openTimeout},
		{"data both ways", func(c connection) []hostStep { return []hostStep{c.sends(packet.ACK, 9), c.receives(packet.ACK, 9)} }, openTimeout},
		{"FIN of the host", func(c connection) []hostStep { return []hostStep{c.sends(fin, 0)} }, halfTimeout},
		{"FIN of the peer", func(c connection) []hostStep { return []hostStep{c.receives(fin, 0)} }, halfTimeout},
		{"FIN of the peer behind data", func(c connection) []hostStep { return []hostStep{c.comes(fin, 1<<20)} }, halfTimeout},
		{"FIN of the peer again", func(c connection) []hostStep { return []hostStep{c.comes(fin, -1000)} }, halfTimeout},
		{"data after a FIN", func(c connection) []hostStep {
			return []hostStep{c.sends(fin, 0), c.receives(packet.ACK, 9), c.sends(packet.ACK, 0), c.receives(packet.ACK, 9)}
		}, halfTimeout},
		{"FIN of both", func(c connection) []hostStep { return []hostStep{c.sends(fin, 0), c.receives(fin, 0)} }, closedTimeout},
		{"FIN of both, the peer first", func(c connection) []hostStep { return []hostStep{c.receives(fin, 0), c.sends(fin, 0)} }, closedTimeout},
		{"RST of the host", func(c connection) []hostStep { return []hostStep{c.sends(packet.RST, 0)} }, resetTimeout},
		{"RST of the peer", func(c connection) []hostStep { return []hostStep{c.receives(packet.RST, 0)} }, resetTimeout},
		{"RST of the peer behind data", func(c connection) []hostStep { return []hostStep{c.comes(packet.RST|packet.ACK, 1<<20)} }, resetTimeout},
		{"RST of the peer from its FIN", func(c connection) []hostStep { return []hostStep{c.receives(fin, 0), c.comes(packet.RST, -1)} }, resetTimeout},
		{"RST after the FIN of both", func(c connection) []hostStep {
			return []hostStep{c.sends(fin, 0), c.receives(fin, 0), c.receives(packet.RST, 0)}
		}, resetTimeout},
		{"forged RST", far(packet.RST), openTimeout},
		{"forged RST with ACK", far(packet.RST | packet.ACK), openTimeout},
		{"forged RST just before", func(c connection) []hostStep { return []hostStep{c.comes(packet.RST, -2)} }, openTimeout},
		{"forged FIN", far(fin), openTimeout},
		{"forged FIN after the host's", func(c connection) []hostStep { return append([]hostStep{c.sends(fin, 0)}, far(fin)(c)...) }, halfTimeout},
		{"RST that the host does not believe", func(c connection) []hostStep {
			return []hostStep{c.comes(packet.RST, 100), c.sends(packet.ACK, 0)}
		}, openTimeout},
		{"RST that the host does not believe, after its FIN", func(c connection) []hostStep {
			return []hostStep{c.sends(fin, 0), c.comes(packet.RST, 100), c.sends(packet.ACK, 0)}
		}, halfTimeout},
		{"data after an RST of the peer", func(c connection) []hostStep {
			return []hostStep{c.receives(packet.RST, 0), c.receives(packet.ACK, 9)}
		}, resetTimeout},
	}
}

// A call of a backend itself must not meet a redirected connection of the same port, and
// goes once that one has ended.
func TestClash(t *testing.T) {
	for _, c := range connections() {
		syn := synOf(linuxSYN...)
		syn.Seq = 4711
		direct := segment(c.client, c.backend, syn)
		dropped := hostStep{name: "direct SYN", in: direct, verdict: tcShot, event: c.service + " clash"}
		for _, e := range endings() {
			after := []hostStep{dropped}
			if e.final() {
				after = []hostStep{leavesAs("direct SYN", "", direct, nil), leavesAs("data", "", segment(c.client, c.vip, dataOf(packet.ACK)), nil)}
			}
			t.Run(c.service+": "+e.name, func(t *testing.T) {
				h := newRedirectHost(t)
				h.check(c.asks(), c.taken(), dropped)
				h.check(e.steps(c)...)
				h.check(after...)
			})
		}
	}
}

// Connections are forgotten by how they ended; others of the same host stay.
func TestAging(t *testing.T) {
	gone := func(netip.AddrPort, netip.AddrPort) bool { return false }
	for _, e := range endings() {
		t.Run(e.name, func(t *testing.T) {
			h := newRedirectHost(t)
			c, open := connections()[0], connections()[1]
			h.check(c.asks(), c.taken())
			h.check(e.steps(c)...)
			began := now()
			h.check(open.asks(), open.taken())
			// The programs note the time to a second.
			h.ages(t, began+e.timeout-2*time.Second, gone)
			h.remembers(t, "before its time", 1, 1)
			h.ages(t, now()+e.timeout+time.Millisecond, gone)
			last := 1
			if e.timeout == openTimeout {
				last = 0
			}
			h.remembers(t, "after it", 0, last)
			if last == 1 {
				h.check(open.sends(packet.ACK, 1), open.receives(packet.ACK, 1), leavesAs("data", "", segment(c.client, c.vip, dataOf(packet.ACK)), nil),
					arrivesAs("data", "", segment(c.backend, c.client, dataOf(packet.ACK)), nil))
			}
		})
	}
}

// A connection that was reset stays as long as the host has a socket of it.
func TestResetIsNotBelieved(t *testing.T) {
	for i, c := range connections()[:2] {
		t.Run(c.service, func(t *testing.T) {
			h := newRedirectHost(t)
			h.check(c.asks(), c.taken(), c.receives(packet.RST, 0))
			want := make([]int, i+1)
			want[i] = 1
			h.ages(t, now()+closedTimeout, func(client, vip netip.AddrPort) bool { return client == c.client && vip == c.vip })
			h.remembers(t, "the socket is there", want...)
			h.check(c.sends(packet.ACK, 1), c.receives(packet.ACK, 1), c.receives(packet.RST, 0))
			want[i] = 0
			h.ages(t, now()+closedTimeout, func(netip.AddrPort, netip.AddrPort) bool { return false })
			h.remembers(t, "the socket is gone", want...)
		})
	}
}

func (h *redirectHost) ages(t testing.TB, at time.Duration, hasSocket func(client, vip netip.AddrPort) bool) {
	t.Helper()
	if err := h.age(at, hasSocket); err != nil {
		t.Fatal(err)
	}
}

// Programs look for connections exactly as long as there may be any.
func TestNothingRememberedNothingLookedFor(t *testing.T) {
	for _, c := range connections()[:2] {
		t.Run(c.service, func(t *testing.T) {
			h := newRedirectHost(t)
			gone := func(netip.AddrPort, netip.AddrPort) bool { return false }
			h.check(c.asks(), c.taken(), c.sends(packet.ACK, 1), c.receives(packet.ACK, 1))
			h.ages(t, now(), gone)
			if h.remembersNothing(t) {
				t.Fatal("a connection is there")
			}
			var all uint64
			if err := h.RedirectMemory.Lookup(remembered, &all); err != nil {
				t.Fatal(err)
			}
			h.finds(t, all)
			h.check(leavesAs("nobody looks", "", segment(c.client, c.vip, dataOf(packet.ACK)), nil),
				arrivesAs("nobody looks", "", segment(c.backend, c.client, dataOf(packet.ACK)), nil))
			h.finds(t, all-1)
			h.check(c.sends(packet.ACK, 1), c.receives(packet.ACK, 1))
			h.ages(t, now()+openTimeout+time.Second, gone)
			if h.remembersNothing(t) {
				t.Error("what has just been taken out may have been there when a program looked")
			}
			h.ages(t, now(), gone)
			if !h.remembersNothing(t) {
				t.Error("no connection is there any more")
			}
		})
	}
}

// remembersNothing reports whether the programs look for no connections.
func (h *redirectHost) remembersNothing(t testing.TB) bool {
	t.Helper()
	var all, empty uint64
	if err := errors.Join(h.RedirectMemory.Lookup(remembered, &all), h.RedirectMemory.Lookup(foundEmpty, &empty)); err != nil {
		t.Fatal(err)
	}
	return all == empty
}

// finds says how many connections it were when there were none.
func (h *redirectHost) finds(t *testing.T, n uint64) {
	t.Helper()
	if err := h.RedirectMemory.Put(foundEmpty, n); err != nil {
		t.Fatal(err)
	}
}

// remembers checks how many connections each of the first services has.
func (h *redirectHost) remembers(t *testing.T, when string, want ...int) {
	t.Helper()
	list, err := h.status()
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range want {
		if list[i].Connections != n {
			t.Errorf("%s: %d connections of %s, want %d", when, list[i].Connections, list[i].Name, n)
		}
	}
}
