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
func (l *Ledger) open(c *Connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.Opened = time.Now()
	c.Good = c.Opened
	switch c.Protocol {
	case "udp":
		l.byID[c.ID] = c
	case "quic":
		l.totals.QUIC++
	default:
		l.totals.TCP++
		l.live++
		l.byPort[c.Client.Port()] = c
	}
}

// moved notes that a connection's client continues from another address.
func (l *Ledger) moved(c *Connection, to netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.Client = to
	l.totals.Moved++
}

// id returns a number that no other connection has.
func (l *Ledger) id() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nextID++
	return l.nextID
}

func (l *Ledger) failedToOpen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.totals.FailedToOpen++
}

// neverAnswered notes a flow that no backend has answered.
func (l *Ledger) neverAnswered(c *Connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.totals.FailedToOpen++
	delete(l.byID, c.ID)
}

// answered notes a correct answer and the time that it took, and returns an error if it came from
// another backend than earlier answers.
func (l *Ledger) answered(c *Connection, who Identity, took time.Duration, bytes int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.known && c.who != who {
		return ErrOtherBackend
	}
	if !c.known && c.Protocol == "udp" {
		c.Opened = time.Now()
		l.totals.UDP++
	}
	c.known, c.who, c.Good = true, who, time.Now()
	l.totals.Exchanges++
	l.totals.Bytes += bytes
	l.stalls.add(took)
	return nil
}

// end notes that a connection is over: because of an error, or, if there is none, because its
// client closed it.
func (l *Ledger) end(c *Connection, outlives time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	if c.Protocol == "tcp" {
		l.live--
		if time.Since(c.Opened) >= outlives {
			l.totals.Outlived++
		}
	}
	l.noteRedirected(c, err != nil)
	delete(l.byID, c.ID)
	if err == nil {
		// Packets after the client's end are no loss.
		if l.byPort[c.Client.Port()] == c {
			delete(l.byPort, c.Client.Port())
		}
		return
	}
	what, now := classify(err), time.Now()
	excused := l.excused(c, now)
	if c.Protocol == "tcp" && excused {
		l.lost[c.Client.Port()] = now
	}
	b := Break{Connection: *c, At: now, Backend: l.backend(c), What: what,
		Detail: err.Error(), Resets: c.resets, Excused: what != wrongData && excused, Redirected: l.isRedirected(c), Ends: slices.Sorted(maps.Keys(l.ends(c)))}
	l.broken = append(l.broken, b)
	l.broke(b)
	if rest := l.served[c.ID]; rest != nil {
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
