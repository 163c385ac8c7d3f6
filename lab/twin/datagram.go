package twin

import (
	"net/netip"
	"time"
)

// How a datagram's row differs from a segment's, and its times.
const (
	datagramKind = 0x55
	returned     = 0x80
	flowLives    = 300 * time.Second
	flowIsFresh  = time.Second
	claimUnit    = 1 << 30 * time.Nanosecond
	oldestClaim  = 254
)

// Relay is the claim of a datagram that the first host has to send to the only other host,
// which keeps it.
const Relay = 255

// DatagramRow has the other hosts that a datagram may belong to.
type DatagramRow struct {
	Hops     []netip.Addr // the first is the host that sent it on first, or has the youngest
	Down     int          // how many of the last ones are down for the director
	Next     int          // the number of the host to try next
	Returned bool         // it is on its way back to the first
	Claim    int          // the youngest age that a host has claimed, in units; 0: none has it; 255: the first of the row keeps it
}

// Bytes is the row as GUE's private data.
func (r DatagramRow) Bytes() []byte {
	next := byte(r.Next)
	if r.Returned {
		next |= returned
	}
	private := []byte{datagramKind, byte(len(r.Hops) | r.Down<<4), next, byte(r.Claim)}
	for _, hop := range r.Hops {
		private = append(private, hop.AsSlice()...)
	}
	return private
}

// Datagram is a datagram that comes to a host, and what is known there.
type Datagram struct {
	From   netip.Addr
	To     netip.Addr              // which address of the host
	Age    time.Duration           // since a datagram of its flow was kept; negative: never
	Serves bool                    // a socket there receives datagrams
	Asks   func(h netip.Addr) bool // a host that is down for the director is worth asking
	Row    DatagramRow
}

// Walk says what a host does with a datagram: it keeps it, knowing the flow or as a new
// one, or sends it on with another row.
func (h *Host) Walk(d Datagram) (keeps, known bool, to netip.Addr, row DatagramRow) {
	row = d.Row
	row.Hops = append([]netip.Addr(nil), row.Hops...)
	up := len(row.Hops) - row.Down
	known = d.Age >= 0 && d.Age < flowLives
	switch {
	case row.Claim == Relay && row.Next == 0 && !row.Returned:
		if h.Addresses[row.Hops[0]] {
			return true, true, to, row
		}
		row.Next = len(row.Hops) + 1
		return false, known, row.Hops[0], row
	case row.Next > len(row.Hops):
		return true, known, to, row
	case !row.Returned && row.Next > up:
		row.Returned, row.Claim = true, 0
		if known && d.Serves {
			row.Claim = 1
		}
		return false, known, row.Hops[0], row
	case known && d.Age < flowIsFresh:
		return true, true, to, row
	case row.Returned && row.Claim > 0:
		row.Next, row.Returned = len(row.Hops)+1, false
		return false, known, d.From, row
	case row.Returned:
		return h.askDown(d, row, row.Next)
	}
	return h.visit(d, row, up, known)
}

// visit is what a host on the way does that is up for the director.
func (h *Host) visit(d Datagram, row DatagramRow, up int, known bool) (bool, bool, netip.Addr, DatagramRow) {
	claim := min(1+int(d.Age/claimUnit), oldestClaim)
	mine := known && (row.Claim == 0 || claim < row.Claim)
	for number := row.Next; number < up; number++ {
		to := row.Hops[number]
		if h.Addresses[to] {
			continue
		}
		if mine || row.Next == 0 {
			row.Hops[0] = d.To
		}
		if mine {
			row.Claim = claim
		}
		row.Next = number + 1
		return false, known, to, row
	}
	first := row.Next == 0 || h.Addresses[row.Hops[0]]
	switch {
	case mine:
		return true, true, netip.Addr{}, row
	case first && row.Claim > 0: // the claim is its own
		return true, true, netip.Addr{}, row
	case first:
		return h.askDown(d, row, up)
	case row.Claim > 0 || row.Down == 0:
		row.Next = len(row.Hops) + 1
	default:
		row.Next, row.Returned = up, true
	}
	return false, known, row.Hops[0], row
}

// askDown is what the first host does when all hosts that are up have been visited.
func (h *Host) askDown(d Datagram, row DatagramRow, from int) (bool, bool, netip.Addr, DatagramRow) {
	for number := from; number < len(row.Hops); number++ {
		to := row.Hops[number]
		if h.Addresses[to] || !d.Asks(to) {
			continue
		}
		row.Hops[0], row.Next, row.Returned, row.Claim = d.To, number+1, false, 0
		return false, false, to, row
	}
	return true, false, netip.Addr{}, row
}
