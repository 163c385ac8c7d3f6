package bgp

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
)

const (
	ourAS   = 65001
	theirAS = 65000
)

var loopback = netip.MustParseAddr("127.0.0.1")

// neighbor is a router that does what a test says, byte by byte. Real ones are in test/.
type neighbor struct {
	t        *testing.T
	listener net.Listener
	config   model.BGPNeighbor
	speaker  *Speaker
	log      *logBuffer
}

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns what was logged so far.
func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logBuffer) count(text string) int { return strings.Count(l.String(), text) }

// newNeighbor listens, and lets a speaker know.
func newNeighbor(t *testing.T, routes ...string) *neighbor {
	t.Helper()
	return newNeighborWith(t, 9*time.Second, routes...)
}

// newNeighborWith is newNeighbor with another hold time: a change of it later would be of the
// session that the speaker has begun by then.
func newNeighborWith(t *testing.T, hold time.Duration, routes ...string) *neighbor {
	t.Helper()
	return newNeighborAfter(t, hold, func(*neighbor) {}, routes...)
}

// newNeighborAfter is newNeighborWith after something else has been done: before the first connection.
func newNeighborAfter(t *testing.T, hold time.Duration, prepare func(*neighbor), routes ...string) *neighbor {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	n := &neighbor{t: t, listener: listener, log: &logBuffer{}}
	n.config = model.BGPNeighbor{Address: loopback, ASN: theirAS, Port: uint16(listener.Addr().(*net.TCPAddr).Port),
		HoldTime: model.Duration(hold), RestartTime: model.Duration(time.Minute), Families: []model.BGPFamily{model.BGPIPv4}}
	n.speaker = New(nil, slog.New(slog.NewTextHandler(n.log, nil)))
	t.Cleanup(n.speaker.Close)
	prepare(n)
	n.set(routes...)
	return n
}

func (n *neighbor) set(prefixes ...string) {
	config := model.BGP{ASN: ourAS, RouterID: netip.MustParseAddr("10.0.0.1"), Neighbors: []model.BGPNeighbor{n.config}}
	var routes []model.Route
	for _, p := range prefixes {
		routes = append(routes, model.Route{Prefix: netip.MustParsePrefix(p)})
	}
	n.speaker.Set(config, routes)
}

// accept takes the speaker's next connection and returns the OPEN that begins it.
func (n *neighbor) accept() (*connection, *gobgp.BGPOpen) {
	n.t.Helper()
	_ = n.listener.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute))
	conn, err := n.listener.Accept()
	if err != nil {
		n.t.Fatal("the speaker does not connect:", err)
	}
	n.t.Cleanup(func() { conn.Close() })
	c := &connection{conn}
	m := n.read(c)
	open, err := parseOpen(m)
	if err != nil {
		n.t.Fatal(err)
	}
	return c, open
}

func (n *neighbor) read(c *connection) message {
	n.t.Helper()
	m, err := c.read(time.Now().Add(time.Minute))
	if err != nil {
		n.t.Fatal("read from the speaker:", err)
	}
	return m
}

// hello returns this neighbor's OPEN.
func (n *neighbor) hello(asn uint32, hold uint16, more ...gobgp.ParameterCapabilityInterface) *gobgp.BGPMessage {
	capabilities := append([]gobgp.ParameterCapabilityInterface{gobgp.NewCapFourOctetASNumber(asn), gobgp.NewCapMultiProtocol(gobgp.RF_IPv4_UC)}, more...)
	m, err := gobgp.NewBGPOpenMessage(uint16(min(asn, 65535)), hold, netip.MustParseAddr("10.0.0.9"),
		[]gobgp.OptionParameterInterface{gobgp.NewOptionParameterCapability(capabilities)})
	if err != nil {
		n.t.Fatal(err)
	}
	return m
}

var helper = gobgp.NewCapGracefulRestart(false, true, 0, nil)

// establish agrees to everything, and returns with the session established.
func (n *neighbor) establish(more ...gobgp.ParameterCapabilityInterface) (*connection, *gobgp.BGPOpen) {
	n.t.Helper()
	c, open := n.accept()
	n.agree(c, more...)
	return c, open
}

func (n *neighbor) agree(c *connection, more ...gobgp.ParameterCapabilityInterface) {
	n.t.Helper()
	if err := c.write(time.Second, n.hello(theirAS, 90, more...), gobgp.NewBGPKeepAliveMessage()); err != nil {
		n.t.Fatal(err)
	}
	if m := n.read(c); m.kind != gobgp.BGP_MSG_KEEPALIVE {
		n.t.Fatalf("the speaker answers an OPEN with a message of type %d: % x", m.kind, m.body)
	}
}

// hears reads updates until the end of what there is to tell, and returns what is announced.
func (n *neighbor) hears(c *connection, told map[string]bool, until func() bool) {
	n.t.Helper()
	for !until() {
		m := n.read(c)
		if m.kind != gobgp.BGP_MSG_UPDATE {
			continue
		}
		apply(n.t, told, m)
	}
}

// apply changes what is announced as an UPDATE says. The end of it all is "end".
func apply(t *testing.T, told map[string]bool, m message) {
	t.Helper()
	parsed, err := gobgp.ParseBGPBody(&gobgp.BGPHeader{Type: m.kind, Len: uint16(19 + len(m.body))}, m.body)
	if err != nil {
		t.Fatal(err)
	}
	u := parsed.Body.(*gobgp.BGPUpdate)
	for _, gone := range u.WithdrawnRoutes {
		delete(told, gone.NLRI.String())
	}
	for _, come := range u.NLRI {
		told[come.NLRI.String()] = true
	}
	for _, a := range u.PathAttributes {
		switch a := a.(type) {
		case *gobgp.PathAttributeMpUnreachNLRI:
			for _, gone := range a.Value {
				delete(told, gone.NLRI.String())
			}
		case *gobgp.PathAttributeMpReachNLRI:
			for _, come := range a.Value {
				told[come.NLRI.String()] = true
			}
		}
	}
	if end, _ := u.IsEndOfRib(); end {
		told["end"] = true
	}
}

// eventually waits for what the speaker says of the neighbor.
func (n *neighbor) eventually(what string, condition func(model.BGPNeighborStatus) bool) {
	n.t.Helper()
	var status model.BGPNeighborStatus
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) { // between two looks
		if all := n.speaker.Status().Neighbors; len(all) == 1 {
			if status = all[0]; condition(status) {
				return
			}
		}
		if time.Now().After(end) {
			n.t.Fatalf("waited in vain for the speaker to %s: %+v", what, status)
		}
	}
}
