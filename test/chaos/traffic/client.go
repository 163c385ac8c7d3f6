package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// pipe is one end of a connection.
type pipe interface {
	io.ReadWriteCloser
	SetDeadline(at time.Time) error
	SetReadDeadline(at time.Time) error
}

// client is the client's end of a connection, of TCP or QUIC, and what it does.
type client struct {
	*Connection
	load   *Load
	conn   pipe
	moves  *quicPipe // nil: the client does not move
	kind   kind
	rng    *rand.Rand
	up     *Stream
	down   *Stream
	buffer []byte

	mu     sync.Mutex
	idling bool // waits between two exchanges
}

// dialled is a connection that has been opened.
type dialled struct {
	pipe
	from  netip.AddrPort
	began time.Time // before the client's first packet
}

// dialTCP opens a connection.
func (l *Load) dialTCP(ctx context.Context) (dialled, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Patience)
	defer cancel()
	l.dialing <- struct{}{}
	began := time.Now()
	conn, err := l.Client.DialContext(ctx, "tcp4", l.TCP.String())
	<-l.dialing
	if err != nil {
		return dialled{}, err
	}
	return dialled{conn.(*net.TCPConn), conn.LocalAddr().(*net.TCPAddr).AddrPort(), began}, nil
}

// newClient notes an opened connection, and returns its client.
func (l *Load) newClient(d dialled, protocol string, k kind, rng *rand.Rand) *client {
	id := l.Tracker.id()
	c := &client{load: l, conn: d.pipe, kind: k, rng: rng, up: Up(id), down: Down(id), buffer: make([]byte, bufferSize),
		Connection: &Connection{ID: id, Protocol: protocol, Kind: k.name, Began: d.began, Client: d.from}}
	l.Tracker.open(c.Connection)
	return c
}

// live keeps the connection busy until its life is over, the run is finished, or it breaks. It ends
// with an exchange, which finds a connection that broke silently.
func (c *client) live(life time.Duration) {
	defer c.conn.Close()
	over := time.Now().Add(life)
	err := c.exchange()
	for last := false; err == nil && !last; {
		last, err = c.idle()
		last = last || time.Now().After(over)
		if err == nil && c.moves != nil && c.rng.IntN(moveShare) == 0 {
			err = c.move()
		}
		if err == nil {
			err = c.exchange()
		}
	}
	c.load.Tracker.end(c.Connection, c.load.Outlives, err)
}

// move continues from another address.
func (c *client) move() error {
	to, err := c.moves.move(c.rng)
	if err == nil {
		c.load.Tracker.moved(c.Connection, to)
	}
	return err
}

// exchange sends a request and checks the answer.
func (c *client) exchange() error {
	begin := time.Now()
	if err := c.conn.SetDeadline(begin.Add(c.load.Patience)); err != nil {
		return err
	}
	r := request{c.ID, uint32(c.kind.up.draw(c.rng)), uint32(c.kind.down.draw(c.rng))}
	if err := send(c.conn, c.buffer, r.append(nil), c.up, int(r.up)); err != nil {
		return err
	}
	if _, err := io.ReadFull(c.conn, c.buffer[:answerSize]); err != nil {
		return err
	}
	a := parseAnswer(c.buffer)
	if a.status != 0 || a.id != c.ID {
		return fmt.Errorf("%w: the answer is about %d with status %d", ErrWrongData, a.id, a.status)
	}
	if err := receive(c.conn, c.buffer, c.down, int(r.down)); err != nil {
		return err
	}
	return c.load.Tracker.answered(c.Connection, a.from, time.Since(begin), int(r.up+r.down))
}

// idle waits for the next exchange, and sees when the connection is reset or closed meanwhile. It
// reports whether the run should finish.
func (c *client) idle() (last bool, err error) {
	c.mu.Lock()
	select {
	case <-c.load.finish:
		c.mu.Unlock()
		return true, nil
	default:
	}
	c.idling = true
	err = c.conn.SetReadDeadline(time.Now().Add(c.kind.pause.draw(c.rng)))
	c.mu.Unlock()
	if err != nil {
		return false, err
	}
	n, err := c.conn.Read(c.buffer[:1])
	c.mu.Lock()
	c.idling = false
	c.mu.Unlock()
	switch {
	case n > 0:
		return false, fmt.Errorf("%w: a byte that nobody asked for", ErrWrongData)
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return false, err
	}
	select {
	case <-c.load.finish:
		return true, nil
	default:
		return false, nil
	}
}

// wake ends the wait between two exchanges after that time.
func (c *client) wake(after time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idling {
		_ = c.conn.SetReadDeadline(time.Now().Add(after)) // an error means closed: no longer idle
	}
}
