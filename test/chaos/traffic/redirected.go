package traffic

import (
	"net/netip"
	"slices"
	"time"
)

// Redirects tells the tracker that connections are handed over: connections to another server
// address than the VIP have no director, and outlive their backend's removal.
func (t *Tracker) Redirects(vip netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.vip = vip
}

// Removed notes that directors no longer have a backend: connections through directors end, and
// handed over ones go on.
func (t *Tracker) Removed(backend int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.dead(backend) {
		t.absences[backend] = append(t.absences[backend], absence{from: time.Now(), removed: true})
	}
}

// redirected reports whether a connection at this address of a backend was handed over.
func (t *Tracker) redirected(protocol string, at netip.Addr) bool {
	return protocol == "tcp" && t.vip.IsValid() && at.Unmap() != t.vip
}

// isRedirected reports whether a connection was handed over, if its backend has told so.
func (t *Tracker) isRedirected(c *Connection) bool {
	backend := t.backend(c)
	for _, a := range slices.Backward(t.acceptors[acceptedFrom{c.Protocol, c.Client}]) {
		if a.at.After(c.Began) && int(a.who.Backend) == backend {
			return a.redirected
		}
	}
	for _, a := range slices.Backward(t.answerers[c.Client.Port()]) {
		if a.at.After(c.Began) && a.backend == backend {
			return a.redirected
		}
	}
	return false
}

// noteRedirected counts a finished TCP connection that was handed over.
func (t *Tracker) noteRedirected(c *Connection, broken bool) {
	if c.Protocol != "tcp" || !t.isRedirected(c) {
		return
	}
	t.totals.Redirected++
	if !broken && slices.ContainsFunc(t.absences[t.backend(c)], func(a absence) bool { return a.removed && a.from.After(c.Opened) }) {
		t.totals.OutlivedRemoval++
	}
}
