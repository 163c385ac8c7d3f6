package traffic

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// Removal ends connections through directors to a backend. Handed over connections have no
// director, so only the end of the backend's host excuses their end.
func TestRemovalEndsWhatDirectorsBring(t *testing.T) {
	client, vip, own := netip.MustParseAddrPort("10.0.0.2:1234"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.1.0.51")
	for name, c := range map[string]struct {
		at   netip.Addr
		ends func(*Tracker)
		want bool
	}{
		"at the VIP, removed":        {vip, func(l *Tracker) { l.Removed(3) }, true},
		"at the VIP, died":           {vip, func(l *Tracker) { l.Died(3) }, true},
		"handed over, removed":       {own, func(l *Tracker) { l.Removed(3) }, false},
		"handed over, died":          {own, func(l *Tracker) { l.Died(3) }, true},
		"handed over, died, removed": {own, func(l *Tracker) { l.Died(3); l.Removed(3) }, true},
	} {
		for _, accepted := range []bool{true, false} { // or only answered
			tracker := NewTracker(client.Addr())
			tracker.Redirects(vip)
			connection := &Connection{ID: 1, Protocol: "tcp", Client: client, Began: time.Now()}
			tracker.open(connection)
			if accepted {
				tracker.accepted("tcp", client, c.at, Identity{Backend: 3})
			} else {
				tracker.AnsweredBy(3, c.at, client, 300)
				tracker.ResetBy(3, client, 301) // shows that backend 3 has opened the connection
			}
			c.ends(tracker)
			tracker.end(connection, 0, net.ErrClosed)
			if b := tracker.Breaks(); len(b) != 1 || b[0].Excused != c.want || b[0].Redirected != (c.at == own) {
				t.Errorf("%s (accepted %v): %+v, want excused %v", name, accepted, b, c.want)
			}
			if n := tracker.Totals().OutlivedRemoval; n != 0 {
				t.Errorf("%s: %d connections that broke went on", name, n)
			}
		}
	}
}

// A connection that went on after a removal is counted when it is over; a later one is not.
func TestOutlivesRemoval(t *testing.T) {
	vip, own := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.1.0.51")
	before, after := netip.MustParseAddrPort("10.0.0.2:1234"), netip.MustParseAddrPort("10.0.0.2:1235")
	tracker := NewTracker(before.Addr())
	tracker.Redirects(vip)
	open := func(client netip.AddrPort) *Connection {
		c := &Connection{ID: tracker.id(), Protocol: "tcp", Client: client, Began: time.Now()}
		tracker.open(c)
		tracker.accepted("tcp", client, own, Identity{Backend: 3})
		return c
	}
	first := open(before)
	tracker.Removed(3)
	second := open(after)
	tracker.end(first, 0, nil)
	tracker.end(second, 0, nil)
	if totals := tracker.Totals(); totals.Redirected != 2 || totals.OutlivedRemoval != 1 {
		t.Errorf("%+v, want 2 handed over, 1 of which went on after the removal", totals)
	}
}
