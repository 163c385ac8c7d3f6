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
		ends func(*Ledger)
		want bool
	}{
		"at the VIP, removed":        {vip, func(l *Ledger) { l.Removed(3) }, true},
		"at the VIP, died":           {vip, func(l *Ledger) { l.Died(3) }, true},
		"handed over, removed":       {own, func(l *Ledger) { l.Removed(3) }, false},
		"handed over, died":          {own, func(l *Ledger) { l.Died(3) }, true},
		"handed over, died, removed": {own, func(l *Ledger) { l.Died(3); l.Removed(3) }, true},
	} {
		for _, accepted := range []bool{true, false} { // or only answered
			ledger := NewLedger(client.Addr())
			ledger.Redirects(vip)
			connection := &Connection{ID: 1, Protocol: "tcp", Client: client, Began: time.Now()}
			ledger.open(connection)
			if accepted {
				ledger.accepted("tcp", client, c.at, Identity{Backend: 3})
			} else {
				ledger.AnsweredBy(3, c.at, client, 300)
				ledger.ResetBy(3, client, 301) // shows that backend 3 has opened the connection
			}
			c.ends(ledger)
			ledger.end(connection, 0, net.ErrClosed)
			if b := ledger.Breaks(); len(b) != 1 || b[0].Excused != c.want || b[0].Redirected != (c.at == own) {
				t.Errorf("%s (accepted %v): %+v, want excused %v", name, accepted, b, c.want)
			}
			if n := ledger.Totals().OutlivedRemoval; n != 0 {
				t.Errorf("%s: %d connections that broke went on", name, n)
			}
		}
	}
}

// A connection that went on after a removal is counted when it is over; a later one is not.
func TestOutlivesRemoval(t *testing.T) {
	vip, own := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.1.0.51")
	before, after := netip.MustParseAddrPort("10.0.0.2:1234"), netip.MustParseAddrPort("10.0.0.2:1235")
	ledger := NewLedger(before.Addr())
	ledger.Redirects(vip)
	open := func(client netip.AddrPort) *Connection {
		c := &Connection{ID: ledger.id(), Protocol: "tcp", Client: client, Began: time.Now()}
		ledger.open(c)
		ledger.accepted("tcp", client, own, Identity{Backend: 3})
		return c
	}
	first := open(before)
	ledger.Removed(3)
	second := open(after)
	ledger.end(first, 0, nil)
	ledger.end(second, 0, nil)
	if totals := ledger.Totals(); totals.Redirected != 2 || totals.OutlivedRemoval != 1 {
		t.Errorf("%+v, want 2 handed over, 1 of which went on after the removal", totals)
	}
}
