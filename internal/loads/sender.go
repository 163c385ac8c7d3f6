package loads

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// Meter measures the loads of the backends on a host.
type Meter interface {
	// Loads returns all loads, and the CPU time that it took to find them.
	Loads() ([]model.Load, time.Duration, error)
}

// Sender is an agent's part: it sends what a meter says to directors.
type Sender struct {
	meter Meter
	log   *slog.Logger
	agent uint64 // its number, without turnBits and lineBits

	sent   atomic.Uint64 // messages
	failed atomic.Uint64 // messages that could not be sent

	setting sync.Mutex // is held while Set changes what is sent
	stop    context.CancelFunc
	running sync.WaitGroup
	now     setting

	mu       sync.Mutex // guards what the status says
	lines    []*line
	interval time.Duration // now
	problem  error         // why there is nothing to send
	badKeys  error
}

// setting is what a sender should do.
type setting struct {
	keys      keys
	interval  time.Duration
	directors []netip.AddrPort
}

// settingOf returns what a valid configuration says; without keys nothing is sent or heard by UDP. It reads the file with keys.
func settingOf(c *model.Config) (s setting, err error) {
	if c.Loads.KeyFile == "" {
		return s, nil
	}
	if s.keys, err = readKeys(c.Loads.KeyFile); err != nil {
		return s, fmt.Errorf("loads.key-file: %w", err)
	}
	s.interval = time.Duration(c.Loads.Interval)
	for _, d := range c.LoadDirectors() {
		s.directors = append(s.directors, netip.AddrPortFrom(d, c.Loads.Port))
	}
	return s, nil
}

func (s *setting) equal(o *setting) bool {
	return slices.Equal(s.keys, o.keys) && s.interval == o.interval && slices.Equal(s.directors, o.directors)
}

// NewSender returns a sender that sends nothing before Set.
func NewSender(meter Meter, log *slog.Logger) *Sender {
	return &Sender{meter: meter, log: log, agent: randomNumber() << (turnBits + lineBits), stop: func() {}}
}

// randomNumber is never 0, which is no agent's or director's number.
func randomNumber() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // which does not fail
	return max(1, binary.BigEndian.Uint64(b[:]))
}

// Set makes the sender follow a valid configuration. The file with keys is read again. After an
// error it goes on as before.
func (s *Sender) Set(c *model.Config) error {
	s.setting.Lock()
	defer s.setting.Unlock()
	next, err := settingOf(c)
	s.mu.Lock()
	s.badKeys = err
	s.mu.Unlock()
	if err != nil || next.equal(&s.now) {
		return err
	}
	s.end()
	s.now = next
	s.mu.Lock()
	s.lines, s.interval, s.problem = nil, next.interval, nil
	s.mu.Unlock()
	if len(next.directors) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	lines := make([]*line, len(next.directors))
	for i, d := range next.directors {
		lines[i] = &line{sender: s, director: d, keys: next.keys}
		lines[i].numbers.Store(&numbers{agent: s.agent | uint64(i)})
		s.running.Go(func() { lines[i].run(ctx) })
	}
	s.mu.Lock()
	s.lines = lines
	s.mu.Unlock()
	s.running.Go(func() { s.report(ctx, next.interval, lines) })
	return nil
}

// Close ends reporting.
func (s *Sender) Close() {
	s.setting.Lock()
	defer s.setting.Unlock()
	s.end()
}

func (s *Sender) end() {
	s.stop()
	s.running.Wait()
}

// report measures and sends until the context ends. Errors are logged once: directors see that
// nothing comes.
func (s *Sender) report(ctx context.Context, interval time.Duration, lines []*line) {
	broken := false
	var sequence uint64
	for began := time.Now(); ; began = time.Now() {
		loads, took, err := s.meter.Loads()
		next := max(interval, restFactor*took)
		s.noteLook(next, err)
		if (err != nil) != broken {
			if broken = err != nil; broken {
				s.log.Warn("directors do not learn of this host's loads", "error", err)
			} else {
				s.log.Info("directors learn of this host's loads again")
			}
		}
		if err == nil {
			for some := range slices.Chunk(loads, loadsAtOnce) {
				sequence++
				m := message{kind: kindReport, sequence: sequence, interval: next, loads: some}
				for _, l := range lines {
					l.send(&m)
				}
			}
		}
		if retry.Sleep(ctx, next-time.Since(began)); ctx.Err() != nil {
			return
		}
	}
}

// restFactor bounds measuring to a twentieth of a CPU: with very many connections reports are
// rarer. A count is not reported twice, because directors add what they place meanwhile.
const restFactor = 20

func (s *Sender) noteLook(interval time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interval, s.problem = interval, err
}

// Problem says why directors do not learn of this host's loads; nil: they do, or should not.
func (s *Sender) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem == nil {
		return nil
	}
	return fmt.Errorf("directors do not learn of this host's loads: %w", s.problem)
}

// Status says what was sent; nil: nothing should be sent.
func (s *Sender) Status() *model.AgentLoads {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errors.Join(s.badKeys, s.problem)
	if len(s.lines) == 0 && err == nil {
		return nil
	}
	status := &model.AgentLoads{Directors: len(s.lines), Interval: model.Duration(s.interval), Sent: s.sent.Load(), Failed: s.failed.Load()}
	for _, l := range s.lines {
		if l.numbers.Load().director != 0 {
			status.Known++
		}
	}
	if err != nil {
		status.Problem = err.Error()
	}
	return status
}

// lineBits of an agent's number say which line it is: a director may have two addresses, and what
// comes to one of them must not look like a replay of the other's. The configuration has room for
// no more addresses.
const lineBits = 8

// turnBits of an agent's number, before those of the line, say how often the line has been told
// another director's number: an answer to an agent's earlier number is old, or a replay.
const turnBits = 16

// line leads to one director.
type line struct {
	sender   *Sender
	director netip.AddrPort
	keys     keys
	numbers  atomic.Pointer[numbers]
	conn     atomic.Pointer[net.UDPConn]
}

// numbers are those of both ends of a line.
type numbers struct {
	agent    uint64
	director uint64 // 0: it has not been heard
}

// after returns the numbers once the director has said another one.
func (n numbers) after(director uint64) numbers {
	const turns = 1<<turnBits - 1
	turn := (n.agent>>lineBits + 1) & turns
	return numbers{n.agent&^(turns<<lineBits) | turn<<lineBits, director}
}

// again is how long a line waits that could not be opened, or has broken.
const again = time.Second

// run keeps the line open, and hears what the director's number is. A socket is opened anew when
// it has broken: the host may have got another address.
func (l *line) run(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.director))
		if err != nil {
			l.sender.log.Debug("no way to a director for reports of loads", "director", l.director, "error", err)
			retry.Sleep(ctx, again)
			continue
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		l.conn.Store(conn)
		l.hear(ctx, conn)
		l.conn.Store(nil)
		stop()
		conn.Close()
	}
}

// hear returns when the socket is closed, or when no answer has come for too long after an error.
func (l *line) hear(ctx context.Context, conn *net.UDPConn) {
	b := make([]byte, longest+1)
	for ctx.Err() == nil {
		n, err := conn.Read(b)
		if err != nil {
			// The port is closed (ICMP), or the socket's address is gone: a new socket may be
			// better, and is no worse.
			retry.Sleep(ctx, again)
			return
		}
		m, _, err := decode(b[:n], l.keys)
		own := l.numbers.Load()
		if err == nil && m.kind == kindNumber && m.agent == own.agent && m.director != own.director {
			next := own.after(m.director)
			l.numbers.Store(&next)
		}
	}
}

func (l *line) send(m *message) {
	conn := l.conn.Load()
	if conn == nil {
		l.sender.failed.Add(1)
		return
	}
	own := *m
	now := l.numbers.Load()
	own.agent, own.director = now.agent, now.director
	if _, err := conn.Write(own.encode(&l.keys[0])); err != nil {
		l.sender.failed.Add(1)
		conn.Close() // the host may have another address now: run opens a new one
		return
	}
	l.sender.sent.Add(1)
}
