package traffic

import (
	"net/netip"
	"slices"
	"time"
)

// Redirects tells the ledger that connections are handed over: connections to another server
// address than the VIP have no director, and outlive their backend's removal.
func (l *Ledger) Redirects(vip netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.vip = vip
}

// Removed notes that directors no longer have a backend: connections through directors end, and
// handed over ones go on.
func (l *Ledger) Removed(backend int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.dead(backend) {
		l.absences[backend] = append(l.absences[backend], absence{from: time.Now(), removed: true})
	}
}

// redirected reports whether a connection at this address of a backend was handed over.
func (l *Ledger) redirected(protocol string, at netip.Addr) bool {
	return protocol == "tcp" && l.vip.IsValid() && at.Unmap() != l.vip
}

// isRedirected reports whether a connection was handed over, if its backend has told so.
func (l *Ledger) isRedirected(c *Connection) bool {
	backend := l.backend(c)
	for _, a := range slices.Backward(l.acceptors[acceptedFrom{c.Protocol, c.Client}]) {
		if a.at.After(c.Began) && int(a.who.Backend) == backend {
			return a.redirected
		}
	}
	for _, a := range slices.Backward(l.answerers[c.Client.Port()]) {
		if a.at.After(c.Began) && a.backend == backend {
			return a.redirected
		}
	}
	return false
}

// noteRedirected counts a finished TCP connection that was handed over.
func (l *Ledger) noteRedirected(c *Connection, broken bool) {
	if c.Protocol != "tcp" || !l.isRedirected(c) {
		return
	}
	l.totals.Redirected++
	if !broken && slices.ContainsFunc(l.absences[l.backend(c)], func(a absence) bool { return a.removed && a.from.After(c.Opened) }) {
		l.totals.OutlivedRemoval++
	}
}
