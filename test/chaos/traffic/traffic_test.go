package traffic

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/quiclb"
)

// client --- server, through the test's relay if there is one
type pair struct {
	client, server *netlab.Host
	link           *netlab.Link
	tracker        *Tracker
	serving        *Server
}

func newPair(t *testing.T) *pair {
	t.Helper()
	lab := netlab.ForTest(t)
	p := &pair{client: lab.Host("client"), server: lab.Host("server"), tracker: NewTracker(netip.MustParseAddr("10.0.0.2"))}
	p.link = lab.Link(p.client, p.server, netlab.LinkOptions{A: []string{"10.0.0.2/24", "10.0.0.3/24"}, B: []string{"10.0.0.1/24"}})
	var err error
	if p.serving, err = Serve(t.Context(), p.server, 3, []string{":80"}, []string{":7"}, p.tracker); err != nil {
		t.Fatal(err)
	}
	codec, err := quiclb.New(quiclb.Config{ServerIDLength: 1, NonceLength: 8})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.serving.ServeQUIC(t.Context(), "10.0.0.1:443", codec, []byte{3}); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *pair) load(port uint16) *Load {
	at := netip.MustParseAddr("10.0.0.1")
	return &Load{Client: p.client, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")},
		TCP: netip.AddrPortFrom(at, port), UDP: netip.AddrPortFrom(at, 7), QUIC: netip.AddrPortFrom(at, 443), Tracker: p.tracker,
		Connections: 100, Flows: 10, QUICs: 10, Window: 200 * time.Millisecond, Outlives: 500 * time.Millisecond, Patience: 20 * time.Second, Seed: 1}
}

// known is how many open connections have a backend that the tracker knows.
func (p *pair) known() (n int) {
	p.tracker.mu.Lock()
	defer p.tracker.mu.Unlock()
	for _, c := range p.tracker.byPort {
		if p.tracker.backend(c) == 3 {
			n++
		}
	}
	return n
}

// knownQUIC is how many QUIC connections the server has accepted.
func (p *pair) knownQUIC() (n int) {
	p.tracker.mu.Lock()
	defer p.tracker.mu.Unlock()
	for from := range p.tracker.acceptors {
		if from.protocol == "quic" {
			n++
		}
	}
	return n
}

var waitFor = netlab.WaitFor

func TestNothingBreaksByItself(t *testing.T) {
	p := newPair(t)
	l := p.load(80)
	l.Start(t.Context())
	waitFor(t, "every connection to be open", func() bool { return l.Waiting() == 0 && p.tracker.Live() >= 97 })
	waitFor(t, "some traffic", func() bool { return p.tracker.Totals().Exchanges > 500 && p.tracker.Totals().Moved > 20 })
	begin := time.Now()
	waitFor(t, "the connections to be old", func() bool { return time.Since(begin) > l.Outlives })
	l.Finish()
	totals := p.tracker.Totals()
	if breaks := p.tracker.Breaks(); len(breaks) > 0 {
		t.Errorf("%d connections broke, first %+v", len(breaks), breaks[0])
	}
	if totals.TCP < 100 || totals.UDP < 10 || totals.QUIC < 10 || totals.FailedToOpen > 0 || totals.Misdirected > 0 || totals.Outlived < 97 || p.tracker.Live() != 0 {
		t.Errorf("%+v with %d left", totals, p.tracker.Live())
	}
	if stall := p.tracker.Stall(0.5); stall <= 0 || stall > l.Patience {
		t.Errorf("half of the exchanges took at most %s", stall)
	}
}

// A backend's end excuses the loss of its connections; a reset of another host does not, and is a
// sign of a packet that went astray.
func TestOnlyDeathExcuses(t *testing.T) {
	for _, died := range []bool{false, true} {
		p := newPair(t)
		l := p.load(80)
		l.Start(t.Context())
		// All except the three in a hundred that are short.
		waitFor(t, "the server to have them", func() bool {
			return l.Waiting() == 0 && p.known() >= 97 && p.tracker.Totals().UDP >= 10 && p.knownQUIC() >= 10
		})
		if died {
			p.tracker.Died(3)
		}
		p.serving.Reset()
		waitFor(t, "the clients to see it", func() bool { return len(p.tracker.Breaks()) >= 110 })
		l.Finish()
		tcp, udp, quic := 0, 0, 0
		for _, b := range p.tracker.Breaks() {
			if b.Excused != died || b.Backend != 3 {
				t.Fatalf("died: %v; got %+v", died, b)
			}
			switch b.Protocol {
			case "udp":
				udp++
			case "quic":
				quic++
			default:
				tcp++
			}
		}
		if tcp < 90 || udp != 10 || quic < 10 {
			t.Errorf("died: %v; %d connections, %d flows and %d QUIC connections broke, want nearly 100, 10 and 10", died, tcp, udp, quic)
		}
	}
}

func TestMisdirectedIsWhatAnotherBackendResets(t *testing.T) {
	tracker := NewTracker(netip.MustParseAddr("10.0.0.2"))
	client := netip.MustParseAddrPort("10.0.0.2:1234")
	c := &Connection{ID: 1, Protocol: "tcp", Client: client}
	tracker.open(c)
	if err := tracker.answered(c, Identity{Backend: 3}, 0, 0); err != nil {
		t.Fatal(err)
	}
	tracker.ResetBy(3, client, 1)                                  // its own
	tracker.ResetBy(4, netip.MustParseAddrPort("10.0.0.2:999"), 1) // for no connection
	tracker.ResetBy(4, netip.MustParseAddrPort("10.0.0.9:1234"), 1)
	if n := tracker.Totals().Misdirected; n != 0 {
		t.Errorf("%d packets misdirected, want none", n)
	}
	tracker.ResetBy(4, client, 1)
	if n := tracker.Totals().Misdirected; n != 1 {
		t.Errorf("%d packets misdirected, want 1", n)
	}
	tracker.end(c, 0, net.ErrClosed)
	if b := tracker.Breaks(); len(b) != 1 || len(b[0].Resets) != 1 || b[0].Resets[0].Backend != 4 {
		t.Errorf("the break does not name who reset it: %+v", b)
	}
	if err := tracker.answered(c, Identity{Backend: 4}, 0, 0); !errors.Is(err, ErrOtherBackend) {
		t.Errorf("an answer of another backend: %v", err)
	}
}

// A connection that no backend accepted belonged to one that answered its SYN: the loss is excused
// if all of those died after it began.
func TestAnswerersExcuse(t *testing.T) {
	client := netip.MustParseAddrPort("10.0.0.2:1234")
	for name, c := range map[string]struct {
		answered, dead, back []int // back: these return, after the connection began or before it
		late, want           bool
	}{
		"nobody answered":           {nil, []int{3}, nil, false, false},
		"the dead one":              {[]int{3, 3}, []int{3}, nil, false, true},
		"one that lives":            {[]int{4}, []int{3}, nil, false, false},
		"both":                      {[]int{3, 4}, []int{3}, nil, false, false},
		"two dead ones":             {[]int{3, 4}, []int{3, 4}, nil, false, true},
		"it began after the end":    {[]int{3}, []int{3}, nil, true, true},
		"one that came back":        {[]int{3}, []int{3}, []int{3}, false, true},
		"it began after the return": {[]int{3}, []int{3}, []int{3}, true, false},
	} {
		tracker := NewTracker(client.Addr())
		connection := &Connection{ID: 1, Protocol: "tcp", Client: client}
		if !c.late {
			connection.Began = time.Now()
		}
		for _, backend := range c.dead {
			tracker.Died(backend)
		}
		for _, backend := range c.back {
			tracker.Returned(backend)
		}
		if c.late {
			connection.Began = time.Now()
		}
		for _, backend := range c.answered {
			tracker.AnsweredBy(backend, client.Addr(), client, 100*uint32(backend))
		}
		tracker.open(connection)
		tracker.end(connection, 0, net.ErrClosed)
		if b := tracker.Breaks(); len(b) != 1 || b[0].Excused != c.want {
			t.Errorf("%s: %+v, want excused %v", name, b, c.want)
		}
		next := &Connection{ID: 2, Protocol: "tcp", Client: client, Began: time.Now()}
		tracker.open(next)
		tracker.end(next, 0, net.ErrClosed)
		if tracker.Breaks()[1].Excused {
			t.Errorf("%s: the next connection of the port is excused, too", name)
		}
	}
}

func TestConnectionIDOfAPacket(t *testing.T) {
	for _, test := range []struct{ packet, want string }{
		{"\x40abcdX", "abcd"},                        // 1-RTT
		{"\x40abc", ""},                              // too short
		{"\xe0\x00\x00\x00\x01\x04abcd\x00", "abcd"}, // handshake
		{"\xe0\x00\x00\x00\x01\x05abcde\x00", ""},    // of another length
		{"\xe0abcd", ""},
		{"\xe0\x00\x00\x00\x01\x04abc", ""},      // cut off
		{"\xc0\x00\x00\x00\x01\x04abcd\x00", ""}, // initial: the client's invention
		{"\xd0\x00\x00\x00\x01\x04abcd\x00", ""}, // 0-RTT
		{"", ""},
	} {
		if got := connectionID([]byte(test.packet), 4); string(got) != test.want {
			t.Errorf("%q: connection ID %q, want %q", test.packet, got, test.want)
		}
	}
}

// Every byte is checked at both ends: a changed one is found.
func TestChangedBytesAreFound(t *testing.T) {
	for _, direction := range []string{"up", "down"} {
		p := newPair(t)
		relay(t, p, direction == "up")
		l := p.load(81)
		l.Flows, l.QUICs, l.Patience = 0, 0, 5*time.Second // for connections that the change has left without an answer
		l.Start(t.Context())
		waitFor(t, "a break", func() bool { return len(p.tracker.Breaks()) > 0 })
		l.Finish()
		if b := p.tracker.Breaks()[0]; b.What != "wrong data" || b.Excused || !strings.Contains(b.Detail, "wrong data") {
			t.Errorf("%s: a changed byte was seen as %+v", direction, b)
		}
	}
}

// relay passes connections to port 81 on to port 80, and changes the 200th byte of one direction.
func relay(t *testing.T, p *pair, up bool) {
	t.Helper()
	listener, err := p.server.Listen("tcp4", ":81")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := p.server.DialContext(t.Context(), "tcp4", "127.0.0.1:80")
			if err != nil {
				near.Close()
				return
			}
			go pass(far, near, up)
			go pass(near, far, !up)
		}
	}()
}

func pass(to, from net.Conn, change bool) {
	defer to.Close()
	buffer := make([]byte, 4096)
	const at = 200
	for seen := 0; ; {
		n, err := from.Read(buffer)
		if change && seen <= at && at < seen+n {
			buffer[at-seen] ^= 1
		}
		seen += n
		if _, werr := to.Write(buffer[:n]); err != nil || werr != nil {
			return
		}
	}
}

func TestStreamsDiffer(t *testing.T) {
	p, q := make([]byte, 100), make([]byte, 100)
	Up(1).Fill(p)
	for name, s := range map[string]*Stream{"another connection": Up(2), "the other direction": Down(1), "another place": {seed: Up(1).seed, offset: 1}} {
		if s.Check(p) == nil {
			t.Errorf("the bytes of %s are taken for the same", name)
		}
	}
	s := Up(1)
	s.Fill(q[:33])
	s.Fill(q[33:])
	if string(p) != string(q) {
		t.Error("the bytes depend on how many are asked for at once")
	}
	if err := Up(1).Check(p); err != nil {
		t.Error(err)
	}
}
