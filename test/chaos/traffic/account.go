package traffic

import (
	"errors"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
)

// open notes a connection that has been established.
func (t *Tracker) open(c *Connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.Opened = time.Now()
	c.Good = c.Opened
	switch c.Protocol {
	case "udp":
		t.byID[c.ID] = c
	case "quic":
		t.totals.QUIC++
	default:
		t.totals.TCP++
		t.live++
		t.byPort[c.Client.Port()] = c
	}
}

// moved notes that a connection's client continues from another address.
func (t *Tracker) moved(c *Connection, to netip.AddrPort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.Client = to
	t.totals.Moved++
}

// id returns a number that no other connection has.
func (t *Tracker) id() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nextID++
	return t.nextID
}

func (t *Tracker) failedToOpen() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.totals.FailedToOpen++
}

// neverAnswered notes a flow that no backend has answered.
func (t *Tracker) neverAnswered(c *Connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.totals.FailedToOpen++
	delete(t.byID, c.ID)
}

// answered notes a correct answer and the time that it took, and returns an error if it came from
// another backend than earlier answers.
func (t *Tracker) answered(c *Connection, who Identity, took time.Duration, bytes int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.known && c.who != who {
		return ErrOtherBackend
	}
	if !c.known && c.Protocol == "udp" {
		c.Opened = time.Now()
		t.totals.UDP++
	}
	c.known, c.who, c.Good = true, who, time.Now()
	t.totals.Exchanges++
	t.totals.Bytes += bytes
	t.stalls.add(took)
	return nil
}

// end notes that a connection is over: because of an error, or, if there is none, because its
// client closed it.
func (t *Tracker) end(c *Connection, outlives time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	if c.Protocol == "tcp" {
		t.live--
		if time.Since(c.Opened) >= outlives {
			t.totals.Outlived++
		}
	}
	t.noteRedirected(c, err != nil)
	delete(t.byID, c.ID)
	if err == nil {
		// Packets after the client's end are no loss.
		if t.byPort[c.Client.Port()] == c {
			delete(t.byPort, c.Client.Port())
		}
		return
	}
	what, now := classify(err), time.Now()
	excused := t.excused(c, now)
	if c.Protocol == "tcp" && excused {
		t.lost[c.Client.Port()] = now
	}
	b := Break{Connection: *c, At: now, Backend: t.backend(c), What: what,
		Detail: err.Error(), Resets: c.resets, Excused: what != wrongData && excused, Redirected: t.isRedirected(c), Ends: slices.Sorted(maps.Keys(t.ends(c)))}
	t.broken = append(t.broken, b)
	t.broke(b)
	if rest := t.served[c.ID]; rest != nil {
		rest.vanish()
	}
}

// wrongData is the fault that no death excuses.
const wrongData = "wrong data"

// classify says what a client saw.
func classify(err error) string {
	switch {
	case errors.Is(err, ErrWrongData):
		return wrongData
	case errors.Is(err, ErrOtherBackend):
		return "another backend"
	case errors.Is(err, errNotMoved):
		return "new address not answered"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), is[*quic.StatelessResetError](err):
		return "reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), is[*quic.ApplicationError](err):
		return "closed"
	}
	return "error"
}

// is reports whether an error is of a type.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
