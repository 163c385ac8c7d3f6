package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"time"
)

// flow is a UDP flow's end at the client.
type flow struct {
	*Connection
	load   *Load
	conn   net.Conn
	rng    *rand.Rand
	sent   uint32 // requests: each has its own bytes
	buffer []byte
}

// What a flow does.
var (
	flowPause = pauses{200 * time.Millisecond, 1500 * time.Millisecond}
	flowSize  = sizes{16, maxDatagram}
)

// errNotAnswered says that a datagram was not answered in time.
var errNotAnswered = errors.New("no answer")

// flowTry is how long a datagram's answer may take before it counts as lost.
const flowTry = 500 * time.Millisecond

// keepFlow keeps one flow going: when it breaks, the next begins.
func (l *Load) keepFlow(ctx context.Context, rng *rand.Rand) {
	first := true
	for !l.finishing(ctx) {
		f, err := l.openFlow(ctx, rng)
		if err != nil {
			l.Tracker.failedToOpen()
			l.pause(ctx, 100*time.Millisecond)
			continue
		}
		stop := context.AfterFunc(ctx, func() { f.conn.Close() })
		for last := false; err == nil && !last; {
			last = l.finishing(ctx)
			if err = f.exchange(); err == nil && first {
				l.waiting.Add(-1)
				first = false
			}
			l.pause(ctx, flowPause.draw(rng))
		}
		stop()
		f.conn.Close()
		if f.known || err == nil {
			l.Tracker.end(f.Connection, l.Outlives, err)
		} else {
			l.Tracker.neverAnswered(f.Connection)
		}
	}
}

func (l *Load) openFlow(ctx context.Context, rng *rand.Rand) (*flow, error) {
	conn, err := l.Client.DialContext(ctx, "udp4", l.UDP.String())
	if err != nil {
		return nil, err
	}
	f := &flow{load: l, conn: conn, rng: rng, buffer: make([]byte, 2048),
		Connection: &Connection{ID: l.Tracker.id(), Protocol: "udp", Kind: "datagrams", Began: time.Now(), Client: conn.LocalAddr().(*net.UDPAddr).AddrPort()}}
	l.Tracker.open(f.Connection)
	return f, nil
}

// exchange sends a request until it is answered, and checks the answer.
func (f *flow) exchange() error {
	f.sent++
	r := request{f.ID, f.sent << 11, uint32(flowSize.draw(f.rng))}
	up := Up(f.ID)
	up.offset = uint64(r.up)
	datagram := r.append(make([]byte, 0, 2048))
	datagram = datagram[:requestSize+flowSize.draw(f.rng)]
	up.Fill(datagram[requestSize:])
	begin := time.Now()
	for time.Since(begin) < f.load.Patience {
		// An error (refused, or no route for a moment) counts as a loss.
		_, _ = f.conn.Write(datagram)
		a, n, err := f.await(r)
		if errors.Is(err, errNotAnswered) {
			continue
		}
		if err != nil {
			return err
		}
		return f.load.Tracker.answered(f.Connection, a.from, time.Since(begin), len(datagram)+n-requestSize-answerSize)
	}
	return fmt.Errorf("%w: %w for %s", os.ErrDeadlineExceeded, errNotAnswered, f.load.Patience)
}

// await reads the answer to a request. Answers to earlier requests may come late, and twice.
func (f *flow) await(r request) (answer, int, error) {
	if err := f.conn.SetReadDeadline(time.Now().Add(flowTry)); err != nil {
		return answer{}, 0, err
	}
	for {
		n, err := f.conn.Read(f.buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return answer{}, 0, errNotAnswered
		}
		if errors.Is(err, net.ErrClosed) {
			return answer{}, 0, err
		}
		if err != nil || n < answerSize {
			continue // an ICMP error
		}
		a := parseAnswer(f.buffer)
		if a.id != f.ID || a.status != 0 {
			return a, n, fmt.Errorf("%w: the answer is about %d with status %d", ErrWrongData, a.id, a.status)
		}
		down := Down(f.ID)
		down.offset = uint64(r.up)
		if n-answerSize == int(r.down) && down.Check(f.buffer[answerSize:n]) == nil {
			return a, n, nil
		}
		if !f.isOld(f.buffer[answerSize:n]) {
			return a, n, fmt.Errorf("%w: the datagram is none that was asked for", ErrWrongData)
		}
	}
}

// isOld reports whether a datagram answers an earlier request.
func (f *flow) isOld(p []byte) bool {
	for n := f.sent; n > 0; n-- {
		down := Down(f.ID)
		down.offset = uint64(n << 11)
		if down.Check(p) == nil {
			return n < f.sent
		}
	}
	return false
}
