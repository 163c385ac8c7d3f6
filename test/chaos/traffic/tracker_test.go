package traffic

import (
	"net"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"
)

// The tracker may learn which backend answered a SYN after the connection has broken. Then that
// backend's death before the break counts, even if it has come back since, and no later death does.
func TestAnswersReadLate(t *testing.T) {
	client := netip.MustParseAddrPort("10.0.0.2:1234")
	for name, c := range map[string]struct {
		before, after func(*Tracker)
		want          bool
	}{
		"dead before":              {func(l *Tracker) { l.Died(3) }, func(*Tracker) {}, true},
		"dead before, and back":    {func(l *Tracker) { l.Died(3) }, func(l *Tracker) { l.Returned(3) }, true},
		"dead afterwards":          {func(*Tracker) {}, func(l *Tracker) { l.Died(3) }, false},
		"dead afterwards and back": {func(*Tracker) {}, func(l *Tracker) { l.Died(3); l.Returned(3) }, false},
	} {
		tracker := NewTracker(client.Addr())
		connection := &Connection{ID: 1, Protocol: "tcp", Client: client, Began: time.Now()}
		c.before(tracker)
		tracker.open(connection)
		tracker.end(connection, 0, net.ErrClosed)
		if b := tracker.Breaks(); len(b) != 1 || b[0].Excused {
			t.Errorf("%s: excused before anybody is known to have answered: %+v", name, b)
		}
		tracker.AnsweredBy(3, client.Addr(), client, 300)
		c.after(tracker)
		if b := tracker.Breaks(); b[0].Excused != c.want {
			t.Errorf("%s: excused %v, want %v", name, b[0].Excused, c.want)
		}
	}
}

// A reset is misdirected if another backend has the connection, and its report says which backends
// had answered.
func TestStraysSayWhoAnswered(t *testing.T) {
	client := netip.MustParseAddrPort("10.0.0.2:1234")
	tracker := NewTracker(client.Addr())
	var told []Stray
	tracker.OnStray(func(s Stray) { told = append(told, s) })
	began := time.Now()
	tracker.AnsweredBy(4, client.Addr(), client, 100*uint32(4))
	tracker.AnsweredBy(3, client.Addr(), client, 100*uint32(3))
	tracker.open(&Connection{ID: 7, Protocol: "tcp", Client: client, Began: began})
	tracker.accepted("tcp", client, client.Addr(), Identity{Backend: 4})
	tracker.ResetBy(4, client, 1)
	if len(told) != 0 {
		t.Errorf("a reset of the backend that has the connection is misdirected: %+v", told)
	}
	tracker.accepted("tcp", client, client.Addr(), Identity{Backend: 6})
	tracker.accepted("tcp", client, client.Addr(), Identity{Backend: 4})
	tracker.ResetBy(6, client, 1)
	if len(told) != 0 {
		t.Errorf("a reset of a backend that has accepted the connection, too, is misdirected: %+v", told)
	}
	tracker.ResetBy(5, client, 1)
	list := tracker.Strays()
	if len(list) != 1 || !reflect.DeepEqual(list, told) {
		t.Fatalf("strays %+v, and told of %+v", list, told)
	}
	if s := list[0]; s.ID != 7 || s.Backend != 4 || s.CameTo != 5 || !slices.Equal(s.Answered, []int{4, 3}) {
		t.Errorf("stray %+v, want one of connection 7 of backend 4 that came to 5, answered by 4 and 3", s)
	}
}

// Of several backends that answered, the one whose SYN-ACK the client acknowledges has the
// connection.
func TestResetsTellWhoOpened(t *testing.T) {
	client := netip.MustParseAddrPort("10.0.0.2:1234")
	for name, c := range map[string]struct {
		acknowledged uint32
		want         int // misdirected packets
	}{"of the one that died": {301, 0}, "of the one that lives": {401, 1}, "of nobody": {501, 1}} {
		tracker := NewTracker(client.Addr())
		connection := &Connection{ID: 1, Protocol: "tcp", Client: client, Began: time.Now()}
		tracker.AnsweredBy(3, client.Addr(), client, 300)
		tracker.Died(3)
		tracker.AnsweredBy(4, client.Addr(), client, 400)
		tracker.open(connection)
		tracker.ResetBy(5, client, c.acknowledged)
		tracker.end(connection, 0, net.ErrClosed)
		if n := tracker.Totals().Misdirected; n != c.want {
			t.Errorf("%s: %d packets misdirected, want %d", name, n, c.want)
		}
		if b := tracker.Breaks(); len(b) != 1 || b[0].Excused != (c.want == 0) {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

// A reset for a connection whose backend has died may come when its port already has the next
// connection: it tells nothing of that one, but later resets do.
func TestResetsOfTheConnectionBefore(t *testing.T) {
	client := netip.MustParseAddrPort("10.0.0.2:1234")
	tracker := NewTracker(client.Addr())
	before := &Connection{ID: 1, Protocol: "tcp", Client: client, Began: time.Now().Add(-readLate)}
	tracker.answerers[client.Port()] = []synAck{{3, 300, before.Began.Add(time.Millisecond), false}}
	tracker.open(before)
	before.Opened = before.Opened.Add(-readLate)
	tracker.Died(3)
	next := &Connection{ID: 2, Protocol: "tcp", Client: client, Began: time.Now()}
	tracker.AnsweredBy(4, client.Addr(), client, 100*uint32(4))
	tracker.end(before, 0, net.ErrClosed)
	tracker.open(next)
	tracker.ResetBy(5, client, 1)
	if n := tracker.Totals().Misdirected; n != 0 {
		t.Errorf("%d packets misdirected, want none: they were of the connection before", n)
	}
	if got := tracker.whoAnswered(next); !slices.Equal(got, []int{4}) {
		t.Errorf("%v answered the next connection, want backend 4", got)
	}
	later := &Connection{ID: 3, Protocol: "tcp", Client: client, Began: time.Now().Add(stillUnderWay)}
	tracker.open(later)
	tracker.ResetBy(5, client, 1)
	if n := tracker.Totals().Misdirected; n != 1 {
		t.Errorf("%d packets of a later connection misdirected, want 1", n)
	}
}

// A connection's ends are at the backends that accepted it, and not at the backend of its port's
// previous connection.
func TestEnds(t *testing.T) {
	client := netip.MustParseAddrPort("10.0.0.2:1234")
	for name, c := range map[string]struct {
		before, accepted []uint16
		want             []int
	}{
		"nobody accepts":      {nil, nil, nil},
		"one":                 {nil, []uint16{3}, []int{3}},
		"one, twice":          {nil, []uint16{3, 3}, []int{3}},
		"two":                 {nil, []uint16{4, 3}, []int{3, 4}},
		"another one, before": {[]uint16{4}, []uint16{3}, []int{3}},
	} {
		tracker := NewTracker(client.Addr())
		for _, backend := range c.before {
			tracker.accepted("tcp", client, client.Addr(), Identity{Backend: backend})
		}
		connection := &Connection{ID: 1, Protocol: "tcp", Client: client, Began: time.Now()}
		for _, backend := range c.accepted {
			tracker.accepted("tcp", client, client.Addr(), Identity{Backend: backend})
		}
		tracker.open(connection)
		tracker.end(connection, 0, net.ErrClosed)
		if b := tracker.Breaks(); len(b) != 1 || !slices.Equal(b[0].Ends, c.want) {
			t.Errorf("%s: %+v, want ends at %v", name, b, c.want)
		}
	}
}

// A QUIC packet is misdirected if its connection ID belongs to another backend that has lived since
// it issued the ID.
func TestMisdirectedIsWhatNamesAnotherBackend(t *testing.T) {
	tracker := NewTracker(netip.MustParseAddr("10.0.0.2"))
	tracker.named("before", Identity{Backend: 3})
	tracker.gotQUIC("before", Identity{Backend: 3})
	tracker.gotQUIC("nobody's", Identity{Backend: 4})
	if n := tracker.Totals().Misdirected; n != 0 {
		t.Errorf("%d packets misdirected, want none", n)
	}
	tracker.gotQUIC("before", Identity{Backend: 4})
	tracker.Died(3)
	tracker.gotQUIC("before", Identity{Backend: 4})
	if totals := tracker.Totals(); totals.Misdirected != 1 || totals.Astray["quic"] != 1 {
		t.Errorf("%d packets misdirected %v, want the one of before the death", totals.Misdirected, totals.Astray)
	}
}
