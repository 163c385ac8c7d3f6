package bgp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"time"
)

// reconnects are connections from a passive neighbor's address while its session is established. Any
// process on the neighbor's host can open one, and any host behind its address. Only with an OPEN
// that suits the session does the neighbor say that it has lost its side (RFC 4724, section 5).
type reconnects struct {
	want  *want
	now   *net.TCPConn // the one that is listened to; nil: none
	heard chan reconnect
	ended <-chan struct{}
}

// reconnect is what has been heard on a connection.
type reconnect struct {
	on    *net.TCPConn
	again net.Conn // the connection, on which all of that is read again
	err   error    // why it does not end the session
}

// errNoReconnect says that a connection has changed nothing. It does not repeat what came on it: each
// text is seen once.
var errNoReconnect = errors.New("a second connection from its address has sent no OPEN that suits the session")

// listen begins to listen to a connection instead of the one before.
func (c *reconnects) listen(conn *net.TCPConn) {
	c.drop()
	c.now = conn
	_ = conn.SetReadDeadline(time.Now().Add(openPatience))
	go func() {
		again, err := awaitOpen(conn, c.want)
		select {
		case c.heard <- reconnect{conn, again, err}:
		case <-c.ended:
		}
	}()
}

// drop closes the connection that is listened to.
func (c *reconnects) drop() {
	if c.now != nil {
		_ = c.now.Close()
		c.now = nil
	}
}

// of takes what was heard on a connection, and returns the neighbor's next connection, or why it
// is none. It returns neither if another connection has come since.
func (c *reconnects) of(heard reconnect) (again net.Conn, err error) {
	if heard.on != c.now {
		return nil, nil
	}
	if heard.err != nil {
		c.drop()
		return nil, errNoReconnect
	}
	c.now = nil
	return heard.again, nil
}

// rest returns the connection that is listened to: it is the next one when the session has ended
// for another reason. nil: there is none.
func (c *reconnects) rest() net.Conn {
	if c.now == nil {
		return nil
	}
	_ = c.now.SetReadDeadline(time.Unix(1, 0)) // what is read next sets another one
	for {
		if heard := <-c.heard; heard.on == c.now {
			return heard.again
		}
	}
}

// awaitOpen waits for an OPEN that suits the session.
func awaitOpen(conn *net.TCPConn, w *want) (net.Conn, error) {
	var seen bytes.Buffer
	c := &connection{&overheard{replayed{conn, io.TeeReader(conn, &seen)}}}
	m, err := c.read(time.Time{})
	if err == nil {
		_, err = agree(w, m)
	}
	return &replayed{conn, io.MultiReader(&seen, conn)}, err
}

// replayed is a connection that is read from another reader.
type replayed struct {
	*net.TCPConn
	from io.Reader
}

// Read reads what has been read before, and then what comes.
func (r *replayed) Read(b []byte) (int, error) { return r.from.Read(b) }

// overheard is a connection whose deadline the session sets: rest may have set another before this
// one is read.
type overheard struct{ replayed }

// SetReadDeadline leaves the deadline as it is.
func (*overheard) SetReadDeadline(time.Time) error { return nil }
