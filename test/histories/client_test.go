package histories

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	"weir.io/weir/lab/twin"
)

// stage is the stage of a connection.
type stage int

const (
	closed  stage = iota
	asked         // a server has answered its SYN
	open          // the server has it
	halfWay       // both have ended it, and the server's FIN is not acknowledged
	hangsUp       // the server has ended it, and the client has not
	ended         // the server's kernel waits for packets that may be under way
)

// client is a client's end of a connection, and what it knows of the server's.
type client struct {
	*life
	flow     model.Flow
	stage    stage
	revision int // of the director that placed it
	tier     uint8
	backend  netip.AddrPort
	host     *host
	promised bool // its packets must come to its host
	backup   bool // it was placed on a backup
	cookie   bool // it was opened with a cookie
	conn     *net.TCPConn
	syn      uint32
	next     uint32 // the client's next sequence number
	ack      uint32 // the server's next sequence number
}

func (c *client) id() twin.Connection { return connection(c.flow) }

func (c *client) has(s twin.Socket) { c.host.twin.Sockets[c.id()] = s }

func (c *client) segment(flags uint8, data string) (twin.Packet, []byte) {
	s := &twin.Segment{Connection: c.id(), Flags: flags, Sequence: c.next, Ack: c.ack, Length: uint32(len(data))}
	return twin.Packet{Segment: s}, segmentFrame(s, data)
}

// sends sends a segment; false: it was lost.
func (c *client) sends(flags uint8, data string) bool {
	c.Helper()
	p, frame := c.segment(flags, data)
	return c.send(c, p, frame)
}

// forget ends a connection. No more packets of it are sent.
func (c *client) forget() {
	if c.conn != nil {
		abort(c.conn)
	}
	for _, h := range c.hosts {
		delete(h.twin.Sockets, c.id())
		delete(h.twin.Cookies, c.id())
		delete(h.twin.Proven, c.id())
	}
	*c = client{life: c.life}
}

// goOn makes the client do something.
func (c *client) goOn() {
	c.Helper()
	switch c.stage {
	case closed:
		c.start()
	case asked:
		c.establish()
	case open:
		c.use()
	case halfWay:
		if c.sends(packet.ACK, "") {
			c.forget()
		}
	case hangsUp:
		c.hangUp()
	case ended:
		c.repeat()
	}
}

// start sends the SYN of another connection, and perhaps again, as if its answer was lost. Which of
// two answers comes first is random.
func (c *client) start() {
	c.Helper()
	c.flow = c.newFlow()
	c.syn = c.r.Uint32()
	c.next = c.syn + 1
	for again := true; again; again = c.r.IntN(4) == 0 {
		if answer, ok := c.ask(); ok && (c.stage == closed || c.r.IntN(2) == 0) {
			if c.stage == asked {
				c.conclusions.resent++
			}
			answer.stage = asked
			*c = answer
		}
	}
	if c.stage == closed {
		c.forget()
	}
}

// ask sends the SYN by a random director.
func (c *client) ask() (answer client, ok bool) {
	c.Helper()
	return c.askBy(c.directors[c.r.IntN(len(c.directors))])
}

// askBy sends the SYN by a director, and returns the connection as the answering host has it.
func (c *client) askBy(d *director) (answer client, ok bool) {
	c.Helper()
	s := &twin.Segment{Connection: c.id(), Flags: packet.SYN, Sequence: c.syn}
	end, path := c.walk(d, c.flow, twin.Packet{Segment: s}, segmentFrame(s, ""))
	if end == nil {
		return answer, false
	}
	_, given := end.twin.Cookies[c.id()]
	if _, has := end.twin.Sockets[c.id()]; given || has {
		return answer, false // the host has answered before, and answers again
	}
	answer = *c
	answer.host, answer.revision, answer.tier = end, d.revision, d.service.Tier
	answer.backend = netip.AddrPortFrom(path[0], 0) // the service's backends have no port of their own
	heard := end.hear(c, func(s segment) bool {
		return s.Connection == c.id() && s.flags == packet.SYN|packet.ACK && s.ack == c.syn+1
	})
	answer.ack = heard.sequence + 1
	if answer.cookie = end.cookies; answer.cookie {
		end.twin.Cookies[c.id()] = twin.Cookie{Sequence: c.syn + 1, Ack: answer.ack}
	} else {
		answer.has(twin.Socket{State: twin.Asked, SYN: c.syn, Answer: heard.sequence})
	}
	answer.promised, answer.backup = c.promises(d, answer.backend, c.flow)
	return answer, true
}

// establish acknowledges the answer.
func (c *client) establish() {
	c.Helper()
	for _, r := range c.revisions[c.revision:] {
		c.promised = c.promised && r.has(c.backend)
	}
	if !c.promised {
		c.forget()
		return
	}
	if !c.sends(packet.ACK, "") {
		if c.r.IntN(2) == 0 {
			c.forget()
		}
		return
	}
	c.conn = c.host.accept(c, c.id())
	delete(c.host.twin.Cookies, c.id())
	c.has(twin.Socket{State: twin.Open, SYN: c.syn})
	c.stage = open
	if c.conclusions.opened++; c.cookie {
		c.conclusions.cookies++
	}
}

// use does something with an open connection: mostly it sends data.
func (c *client) use() {
	c.Helper()
	switch c.r.IntN(20) {
	case 0:
		if c.sends(packet.FIN|packet.ACK, "") {
			c.next++
			c.wants(io.EOF)
			c.must(c.conn.Close())
			c.hearEnd()
			c.stage = halfWay
		}
	case 1:
		c.must(c.conn.Close())
		c.hearEnd()
		c.stage = hangsUp
	case 2:
		if c.next == c.syn+1 {
			return // a bare RST would also be valid for every host that has got the SYN
		}
		if c.sends([]uint8{packet.RST, packet.RST | packet.ACK}[c.r.IntN(2)], "") {
			c.wants(unix.ECONNRESET)
			c.forget()
		}
	case 3:
		late := *c
		_, _ = late.ask() // a late SYN of the connection: the client refuses the answer
	case 4, 5, 6:
		q := &twin.Quote{Connection: c.id(), Sequence: c.ack}
		c.send(c, twin.Packet{Quote: q}, errorFrame(q))
	default:
		c.talk()
	}
}

// talk sends data, which the server must get.
func (c *client) talk() {
	c.Helper()
	data := "from " + c.id().Client.String()
	if !c.sends(packet.PSH|packet.ACK, data) {
		return
	}
	c.next += uint32(len(data))
	got := make([]byte, len(data))
	c.must(c.conn.SetReadDeadline(time.Now().Add(patience)))
	if _, err := io.ReadFull(c.conn, got); err != nil || string(got) != data {
		c.Fatalf("step %d: %s got %q of %q: %v", c.happened, c.host.Name, got, data, err)
	}
}

// wants waits until the server sees how the client has ended the connection.
func (c *client) wants(want error) {
	c.Helper()
	c.must(c.conn.SetReadDeadline(time.Now().Add(patience)))
	if n, err := c.conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, want) {
		c.Fatalf("step %d: %s read %d bytes, error %v, want %v", c.happened, c.host.Name, n, err, want)
	}
}

// hearEnd waits for the server's FIN.
func (c *client) hearEnd() {
	c.Helper()
	c.conn = nil
	c.ack = c.host.hear(c, func(s segment) bool { return s.Connection == c.id() && s.flags&packet.FIN != 0 }).sequence + 1
}

// hangUp ends a connection that the server has ended.
func (c *client) hangUp() {
	c.Helper()
	if !c.sends(packet.FIN|packet.ACK, "") {
		return
	}
	c.next++
	c.has(twin.Socket{State: twin.Ended, Next: c.next, Window: 65535})
	c.stage = ended
}

// repeat sends the FIN again, as if its acknowledgment was lost.
func (c *client) repeat() {
	c.Helper()
	c.next--
	c.sends(packet.FIN|packet.ACK, "")
	c.next++
	if c.r.IntN(4) == 0 {
		c.forget()
	}
}

func (c *client) must(err error) {
	c.Helper()
	must(c, err)
}
