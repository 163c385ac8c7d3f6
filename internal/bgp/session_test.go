package bgp

import (
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
)

// restart returns what an OPEN says about restarting.
func restart(t *testing.T, open *gobgp.BGPOpen) (restarted, forwards bool) {
	t.Helper()
	for _, p := range open.OptParams {
		for _, c := range p.(*gobgp.OptionParameterCapability).Capability {
			if g, is := c.(*gobgp.CapGracefulRestart); is {
				if g.Time != 60 || len(g.Tuples) != 1 || g.Flags&0x04 != 0 {
					t.Errorf("graceful restart is offered as %+v", g)
				}
				return g.Flags&0x08 != 0, g.Tuples[0].Flags&0x80 != 0
			}
		}
	}
	t.Fatal("no graceful restart is offered")
	return false, false
}

// A new process says that it has restarted, and one that lost a session does not. Both say that
// forwarding went on. The routes that they tell are complete, and end with an End-of-RIB marker.
func TestSession(t *testing.T) {
	n := newNeighbor(t, "192.0.2.1/32", "192.0.2.2/32")
	c, open := n.establish(helper)
	if restarted, forwards := restart(t, open); !restarted || !forwards {
		t.Errorf("the first OPEN says restarted %v, forwarding %v", restarted, forwards)
	}
	if open.HoldTime != 9 || open.MyAS != ourAS {
		t.Errorf("the first OPEN is %+v", open)
	}
	told := map[string]bool{}
	n.hears(c, told, func() bool { return told["end"] })
	if len(told) != 3 || !told["192.0.2.1/32"] || !told["192.0.2.2/32"] {
		t.Errorf("the neighbor was told %v", told)
	}
	n.eventually("count what it told", func(s model.BGPNeighborStatus) bool {
		return s.State == model.SessionEstablished && s.Announced == 2 && s.GracefulRestart && s.Problem == "" && s.HoldTime == model.Duration(9*time.Second)
	})
	n.set("192.0.2.2/32", "192.0.2.3/32")
	n.hears(c, told, func() bool { return !told["192.0.2.1/32"] && told["192.0.2.3/32"] })

	clear(told)
	refresh := &gobgp.BGPMessage{Header: gobgp.BGPHeader{Type: gobgp.BGP_MSG_ROUTE_REFRESH}, Body: &gobgp.BGPRouteRefresh{AFI: 1, SAFI: 1}}
	if err := c.write(time.Second, refresh); err != nil {
		t.Fatal(err)
	}
	n.hears(c, told, func() bool { return told["192.0.2.2/32"] && told["192.0.2.3/32"] })

	c.Close()
	c, open = n.establish(helper)
	if restarted, forwards := restart(t, open); restarted || !forwards {
		t.Errorf("the second OPEN says restarted %v, forwarding %v", restarted, forwards)
	}
	clear(told)
	n.hears(c, told, func() bool { return told["end"] })
	if len(told) != 3 {
		t.Errorf("the second time the neighbor was told %v", told)
	}
	n.eventually("count the loss", func(s model.BGPNeighborStatus) bool { return s.Losses == 1 })
}

// ends returns how the speaker ends a connection: by which NOTIFICATION, or without one. Then
// it closes this side, too, as routers do.
func (n *neighbor) ends(c *connection) string {
	n.t.Helper()
	defer c.Close()
	for {
		_, err := c.read(time.Now().Add(time.Minute))
		var f *fault
		switch {
		case errors.As(err, &f) && f.received:
			return f.text
		case err != nil && strings.Contains(err.Error(), "closed the connection"):
			return "nothing"
		case err != nil:
			n.t.Fatal("wait for the end of a session:", err)
		}
	}
}

// A neighbor that keeps routes is not told when only the process ends; it is told of
// every other end.
func TestGoodbye(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(n *neighbor)
		caps []gobgp.ParameterCapabilityInterface
		want string
	}{
		"the process ends": {func(n *neighbor) { n.speaker.Close() }, []gobgp.ParameterCapabilityInterface{helper}, "nothing"},
		"the process ends, of a neighbor that keeps nothing": {func(n *neighbor) { n.speaker.Close() }, nil, "administrative shutdown"},
		"drained": {func(n *neighbor) { n.speaker.Withdraw(0); n.speaker.Close() }, []gobgp.ParameterCapabilityInterface{helper},
			"session: code 6(cease) subcode 2(administrative shutdown)"},
		"removed": {func(n *neighbor) { n.speaker.Set(model.BGP{}, nil) }, []gobgp.ParameterCapabilityInterface{helper},
			"session: code 6(cease) subcode 3(peer deconfigured)"},
		"removed, of a neighbor that keeps routes after a NOTIFICATION, too": {func(n *neighbor) { n.speaker.Set(model.BGP{}, nil) },
			[]gobgp.ParameterCapabilityInterface{helper}, "hard reset: code 6(cease) subcode 3(peer deconfigured)"},
		"changed": {func(n *neighbor) { n.config.HoldTime *= 2; n.set() }, []gobgp.ParameterCapabilityInterface{helper}, "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNeighbor(t)
			n.config.KeepWhenSilent = strings.Contains(name, "after a NOTIFICATION")
			n.set("192.0.2.1/32")
			c, _ := n.establish(test.caps...)
			told := map[string]bool{}
			n.hears(c, told, func() bool { return told["192.0.2.1/32"] })
			go test.end(n)
			if got := n.ends(c); !strings.Contains(got, test.want) {
				t.Errorf("the session ends with %q, want %q", got, test.want)
			}
		})
	}
}

// The routes of a draining director: first marked, then withdrawn, and then none.
func TestWithdraw(t *testing.T) {
	n := newNeighbor(t, "192.0.2.1/32")
	c, _ := n.establish(helper)
	told := map[string]bool{}
	n.hears(c, told, func() bool { return told["end"] })
	n.speaker.Withdraw(100 * time.Millisecond)
	marked := n.read(c)
	for marked.kind == gobgp.BGP_MSG_KEEPALIVE { // it comes when it is due
		marked = n.read(c)
	}
	if want := []byte{0xff, 0xff, 0, 0}; !strings.Contains(string(marked.body), string(want)) {
		t.Errorf("before it withdraws it tells % x, without the community 65535:0", marked.body)
	}
	n.hears(c, told, func() bool { return !told["192.0.2.1/32"] })
	n.set("192.0.2.1/32", "192.0.2.2/32")
	n.eventually("have nothing announced", func(s model.BGPNeighborStatus) bool { return s.Announced == 0 })
	if status := n.speaker.Status(); !status.Draining || len(status.Routes) != 2 || status.Routes[0].Neighbors != 0 {
		t.Errorf("the status is %+v", status)
	}
}

// A drain that is called off: the routes are announced again, and the end of the process
// then takes nothing away.
func TestResume(t *testing.T) {
	n := newNeighbor(t, "192.0.2.1/32")
	c, _ := n.establish(helper)
	told := map[string]bool{}
	n.hears(c, told, func() bool { return told["end"] })
	n.speaker.Withdraw(0)
	n.hears(c, told, func() bool { return !told["192.0.2.1/32"] })
	go func() {
		n.speaker.Resume()
		n.speaker.Close()
	}()
	n.hears(c, told, func() bool { return told["192.0.2.1/32"] })
	if got := n.ends(c); got != "nothing" {
		t.Errorf("the session ends with %q, want nothing", got)
	}
}

const marker = "ffffffffffffffffffffffffffffffff"

// Whatever a neighbor sends, it is told what is wrong with that, the log says it once, and
// the next connection is as good as the first.
func TestNeighborsThatAreWrong(t *testing.T) {
	open := func(asn uint32, hold uint16, more ...gobgp.ParameterCapabilityInterface) func(*neighbor, *connection) {
		return func(n *neighbor, c *connection) { _ = c.write(time.Second, n.hello(asn, hold, more...)) }
	}
	raw := func(text string) func(*neighbor, *connection) {
		return func(n *neighbor, c *connection) {
			data, err := hex.DecodeString(text)
			if err != nil {
				n.t.Fatal(err)
			}
			_, _ = c.Write(data)
		}
	}
	later := func(text string) func(*neighbor, *connection) {
		return func(n *neighbor, c *connection) {
			n.agree(c, helper)
			raw(text)(n, c)
		}
	}
	for name, test := range map[string]struct {
		do     func(*neighbor, *connection)
		notify string // by which NOTIFICATION the session ends
		says   string // in weir bgp and the log
	}{
		"another AS":              {open(64999, 90), "bad peer as", "it is of AS 64999, and the configuration says 65000"},
		"no hold time":            {open(theirAS, 0), "unacceptable hold time", "without a hold time"},
		"a hold time of 2":        {open(theirAS, 2), "unacceptable hold time", "unacceptable hold time"},
		"not BGP":                 {raw(hex.EncodeToString([]byte("HTTP/1.1 400 Bad Request\r\n"))), "connection not synchronized", "not BGP"},
		"too short":               {raw(marker + "001204"), "bad message length", "18 bytes long"},
		"too long":                {raw(marker + "ffff02"), "bad message length", "65535 bytes long"},
		"a type that is none":     {raw(marker + "001309"), "bad message type", "type 9"},
		"no OPEN":                 {raw(marker + "001304"), "opensent", "begins with a message of type 4"},
		"version 3":               {raw(marker + "001d01" + "03" + "fde8" + "005a" + "0a000009" + "00"), "unsupported version number", "unsupported version 3"},
		"capabilities cut short":  {raw(marker + "002101" + "04" + "fde8" + "005a" + "0a000009" + "04" + "0202ff"), "", ""},
		"garbage in capabilities": {raw(marker + "002501" + "04" + "fde8" + "005a" + "0a000009" + "08" + "0206" + "41ff0000fde8"), "code 2(open)", ""},
		"a second OPEN":           {later(marker + "001d01" + "04" + "fde8" + "005a" + "0a000009" + "00"), "established", "second time"},
		"an UPDATE cut short":     {later(marker + "001702" + "00050000"), "malformed attribute list", "withdrawn routes are longer"},
		"attributes cut short":    {later(marker + "001702" + "00000004"), "malformed attribute list", "path attributes are longer"},
		"random bytes":            {later("00112233445566778899aabbccddeeff00112233"), "connection not synchronized", "not BGP"},
		"an OPEN and silence":     {func(n *neighbor, c *connection) { n.agree(c, helper) }, "hold timer expired", "silent for the hold time"},
		"a refusal":               {raw(marker + "001503" + "0202"), "", "bad peer as"},
		"a shutdown with a text":  {later(marker + "001b03" + "0602" + "05" + hex.EncodeToString([]byte("moved"))), "", `"moved"`},
		"a family that we do not tell": {func(n *neighbor, c *connection) {
			n.config.Families = []model.BGPFamily{model.BGPIPv4}
			m, _ := gobgp.NewBGPOpenMessage(theirAS, 90, n.speaker.Status().RouterID.Next(), []gobgp.OptionParameterInterface{gobgp.NewOptionParameterCapability(
				[]gobgp.ParameterCapabilityInterface{gobgp.NewCapFourOctetASNumber(theirAS), gobgp.NewCapMultiProtocol(gobgp.RF_IPv6_UC)})})
			_ = c.write(time.Second, m)
		}, "unsupported capability", "does not take ipv4 routes"},
		"another AS, of 16 bits": {raw(marker + "001d01" + "04" + "fde7" + "005a" + "0a000009" + "00"), "bad peer as", "it is of AS 64999, and the configuration says 65000"},
	} {
		t.Run(name, func(t *testing.T) {
			hold := 9 * time.Second
			if name == "an OPEN and silence" {
				hold = 3 * time.Second
			}
			n := newNeighborWith(t, hold, "192.0.2.1/32")
			c, _ := n.accept()
			test.do(n, c)
			if test.notify != "" {
				if got := n.ends(c); !strings.Contains(got, test.notify) {
					t.Errorf("the session ends with %q, want %q", got, test.notify)
				}
			}
			n.eventually("say what is wrong", func(s model.BGPNeighborStatus) bool {
				return s.Problem != "" && strings.Contains(s.Problem, test.says) || name == "capabilities cut short"
			})
			c.Close()
			c, _ = n.establish(helper)
			told := map[string]bool{}
			n.hears(c, told, func() bool { return told["end"] })
			if test.says != "" && n.log.count(strings.ReplaceAll(test.says, `"`, `\"`)) != 1 {
				t.Errorf("the log does not say %q once:\n%s", test.says, n.log)
			}
		})
	}
}

// A neighbor that comes and goes leaves nothing behind.
func TestFlaps(t *testing.T) {
	n := newNeighbor(t)
	n.listener.Close()
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	n.speaker.port = uint16(free.Addr().(*net.TCPAddr).Port)
	n.config.Passive = true
	config := model.BGP{ASN: ourAS, RouterID: loopback, Listen: []netipAddr{loopback}, Neighbors: []model.BGPNeighbor{n.config}}
	n.speaker.Set(config, []model.Route{{Prefix: prefix("192.0.2.1/32")}})
	flap := func() {
		var conn net.Conn
		for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) { // until it listens
			if conn, err = net.Dial("tcp4", address); err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
		defer conn.Close()
		c := &connection{conn}
		if m := n.read(c); m.kind != gobgp.BGP_MSG_OPEN {
			t.Fatalf("the speaker begins with a message of type %d", m.kind)
		}
		n.agree(c, helper)
		told := map[string]bool{}
		n.hears(c, told, func() bool { return told["end"] })
	}
	flap()
	n.eventually("count the loss", func(s model.BGPNeighborStatus) bool { return s.Losses == 1 })
	before := held(t)
	for range 100 {
		flap()
	}
	n.eventually("count the losses", func(s model.BGPNeighborStatus) bool { return s.Losses == 101 })
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) { // until they end
		now := held(t)
		if now.goroutines <= before.goroutines && now.descriptors <= before.descriptors && now.heap <= before.heap+leak {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the process held %+v, and after 100 sessions it holds %+v", before, now)
		}
	}
}

// leak is less than what 100 sessions take that are not let go of, and more than what the
// log of them takes in this test.
const leak = 256 << 10

// holding is what a process holds.
type holding struct {
	goroutines, descriptors int
	heap                    uint64 // bytes that are reachable
}

func held(t *testing.T) holding {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return holding{runtime.NumGoroutine(), len(descriptors), memory.HeapAlloc}
}

// passive is a neighbor that opens the session itself, to the address that is returned.
func passive(t *testing.T) (n *neighbor, to string) {
	t.Helper()
	n = newNeighbor(t)
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	to = free.Addr().String()
	n.speaker.port = uint16(free.Addr().(*net.TCPAddr).Port)
	n.config.Passive = true
	n.speaker.Set(model.BGP{ASN: ourAS, RouterID: loopback, Listen: []netipAddr{loopback}, Neighbors: []model.BGPNeighbor{n.config}}, nil)
	return n, to
}

// dial opens a connection from the neighbor's address, on which messages are sent at once.
func (n *neighbor) dial(to string, messages ...*gobgp.BGPMessage) *connection {
	n.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) { // until it listens
		conn, err := net.Dial("tcp4", to)
		if err != nil && time.Now().Before(end) {
			continue
		}
		if err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(func() { conn.Close() })
		c := &connection{conn}
		if err := c.write(time.Second, messages...); err != nil {
			n.t.Fatal(err)
		}
		return c
	}
}

// A passive neighbor that lost its side of a session opens another, which replaces the first. Other
// connections of its host end no session: silent ones, or those with an OPEN that does not fit.
func TestPassiveNeighborReplacesItsSession(t *testing.T) {
	n, to := passive(t)
	alive := gobgp.NewBGPKeepAliveMessage()
	hello := func(asn uint32) *gobgp.BGPMessage { return n.hello(asn, 90, helper) }
	first := n.dial(to, hello(theirAS), alive)
	n.eventually("be established", func(s model.BGPNeighborStatus) bool { return s.State == model.SessionEstablished })

	silent := n.dial(to)
	for _, first := range []*gobgp.BGPMessage{alive, hello(theirAS + 1)} {
		other := n.dial(to, first)
		if m, err := other.read(time.Now().Add(time.Minute)); err == nil {
			t.Errorf("a connection without a right OPEN is answered by %+v", m)
		}
	}
	if _, err := io.Copy(io.Discard, silent); err != nil {
		t.Error("a connection that says nothing is not closed when there is another:", err)
	}
	if s := n.speaker.Status().Neighbors[0]; s.State != model.SessionEstablished || s.Losses != 0 {
		t.Errorf("connections that say nothing of use end the session: %+v", s)
	}
	n.eventually("say that it goes on", func(model.BGPNeighborStatus) bool { return n.log.count("BGP session goes on") == 1 })
	n.dial(to) // another one that says nothing
	n.dial(to, hello(theirAS), alive)
	if _, err := io.Copy(io.Discard, first); err != nil {
		t.Error("the first connection:", err)
	}
	n.eventually("be established again", func(s model.BGPNeighborStatus) bool {
		return s.State == model.SessionEstablished && s.Losses == 1
	})
}

// A connection that says nothing does not keep a passive neighbor waiting: it is closed when the
// neighbor opens its own.
func TestSilentConnectionGivesWay(t *testing.T) {
	n, to := passive(t)
	silent := n.dial(to)
	n.read(silent) // the speaker's OPEN: it is the connection of now
	n.dial(to, n.hello(theirAS, 90), gobgp.NewBGPKeepAliveMessage())
	if m, err := silent.read(time.Now().Add(time.Minute)); err == nil || errors.As(err, new(*fault)) {
		t.Errorf("the neighbor has to wait for what has said nothing: that is told %+v, %v", m, err)
	}
	n.eventually("be established", func(s model.BGPNeighborStatus) bool { return s.State == model.SessionEstablished })
}
