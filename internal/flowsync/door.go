package flowsync

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// handshakesMost is how many connections of one address may be in their handshakes at once. A
// director of the group has one; more come only from a process that has ended without a word, or
// from somebody else on that host.
const handshakesMost = 4

// door has the connections whose handshakes are under way. Each address has places of its own, so
// connections that say nothing keep no other director out.
type door struct {
	mu      sync.Mutex
	waiting map[netip.Addr][]net.Conn // the oldest first
}

// enter notes a connection until leave is called. If its address has no place left, it takes that
// of the oldest one, which is closed.
func (d *door) enter(from netip.Addr, conn net.Conn) (leave func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if list := d.waiting[from]; len(list) == handshakesMost {
		list[0].Close()
		d.waiting[from] = slices.Delete(list, 0, 1)
	}
	d.waiting[from] = append(d.waiting[from], conn)
	return func() { d.leave(from, conn) }
}

func (d *door) leave(from netip.Addr, conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting[from] = slices.DeleteFunc(d.waiting[from], func(c net.Conn) bool { return c == conn })
	if len(d.waiting[from]) == 0 {
		delete(d.waiting, from)
	}
}
