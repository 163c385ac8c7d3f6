package twin

import "net/netip"

// Host is a host with backends, its agent and its kernel's sockets.
type Host struct {
	Addresses map[netip.Addr]bool // at which tunnels end
	Sockets   map[Connection]Socket
	Cookies   map[Connection]Cookie // those that it has given out, and listens for
	Proven    map[Connection]Cookie // those that were acknowledged here a moment ago
}

// Packet is what a tunnel carries: a segment, an error about a segment that a host has sent, or a
// packet that sockets tell nothing about.
type Packet struct {
	Segment *Segment
	Quote   *Quote
}

// Row has the other hosts that a packet may belong to. Next is the number of the host to try next.
type Row struct {
	Hops []netip.Addr
	Next int
}

// Verdict is what a host does with a packet.
type Verdict int

// The verdicts.
const (
	Keeps      Verdict = iota // the connection is here, or no other host is named
	LastResort                // it is not, and no host is left to ask
	PassesOn                  // it is not: see the row
)

// Judge says what the host does with a packet that comes with a row. If it passes the packet on,
// the next host is Hops[Next-1] of the returned row.
func (h *Host) Judge(p Packet, row *Row) (Verdict, *Row) {
	if row == nil || h.Has(p) {
		return Keeps, row
	}
	for number := row.Next; number < len(row.Hops); number++ {
		if !h.Addresses[row.Hops[number].Unmap()] {
			return PassesOn, &Row{row.Hops, number + 1}
		}
	}
	return LastResort, row
}

// Has says that a packet's connection is here, or that this cannot be told.
func (h *Host) Has(p Packet) bool {
	switch {
	case p.Segment != nil:
		return h.hasSegment(*p.Segment)
	case p.Quote != nil:
		socket, known := h.Sockets[p.Quote.Connection]
		return known && socket.sent(*p.Quote)
	}
	return true
}

func (h *Host) hasSegment(s Segment) bool {
	if s.Flags&syn != 0 {
		return true
	}
	if socket, known := h.Sockets[s.Connection]; known && socket.has(s) {
		return true
	}
	proven, just := h.Proven[s.Connection]
	return h.acknowledges(s) || just && proven.proves(s)
}

func (h *Host) acknowledges(s Segment) bool {
	cookie, given := h.Cookies[s.Connection]
	_, known := h.Sockets[s.Connection]
	return given && !known && cookie.accepts(s)
}

// Proves returns the cookie that the packet acknowledges, if the host judges it and there is one:
// for a moment it is then in Proven.
func (h *Host) Proves(p Packet, row *Row) (Cookie, bool) {
	if row == nil || p.Segment == nil || p.Segment.Flags&syn != 0 || !h.acknowledges(*p.Segment) {
		return Cookie{}, false
	}
	return Cookie{p.Segment.Sequence, p.Segment.Ack}, true
}
