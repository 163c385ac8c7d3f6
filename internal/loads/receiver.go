package loads

import (
	"context"
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

// outcome is what becomes of a message.
type outcome int

const (
	accepted  outcome = iota
	short             // than any message
	foreign           // no message about loads
	unknown           // by a key that is not known
	forged            // its MAC is not right
	malformed         // the sender has the key, but uses another format
	oldEpoch          // not for this process: the agent has been told the number
	replayed          // or overtaken
	outcomes
)

var outcomeNames = [outcomes]string{"taken", "short", "foreign", "unknown_key", "forged", "malformed", "old_epoch", "replayed"}

// A socket reads this many messages that are not taken in a time slice, and then nothing until the
// slice ends: a flood takes a small part of a CPU. Agents that have been believed have a separate
// socket (gate); messages of others are lost with the flood.
const (
	slice        = 100 * time.Millisecond
	wrongInSlice = 1000
)

// agentsMost bounds what is remembered of agents. When there are more the director takes another
// number, which all agents have to hear: nothing that was forgotten is believed again.
const agentsMost = 1 << 14

// Receiver is a director's part: it hears what agents report.
type Receiver struct {
	log     *slog.Logger
	deliver func(from uint64, interval time.Duration, loads []model.Load)
	local   func(netip.Addr) bool

	counts [outcomes]atomic.Uint64

	hearing   sync.Mutex // guards the following fields
	number    uint64
	sequences map[uint64]uint64 // the last one of each agent

	setting sync.Mutex // is held while Set changes what is heard
	stop    context.CancelFunc
	running sync.WaitGroup
	now     setting

	mu       sync.Mutex
	problems map[netip.AddrPort]error // nil: it listens
	badKeys  error
}

// NewReceiver returns a receiver that hears nothing before Set. take is called with what agents
// say, and their numbers.
func NewReceiver(take func(from uint64, interval time.Duration, loads []model.Load), log *slog.Logger) *Receiver {
	return &Receiver{log: log, deliver: take, local: isLocal, number: randomNumber(), sequences: map[uint64]uint64{}, stop: func() {}}
}

// Set makes the receiver hear what a valid configuration says. The file with keys is read again.
// After an error it goes on as before.
func (r *Receiver) Set(c *model.Config) error {
	r.setting.Lock()
	defer r.setting.Unlock()
	next, err := settingOf(c)
	next.interval = 0 // each report says when the next one comes
	r.mu.Lock()
	r.badKeys = err
	r.mu.Unlock()
	if err != nil || next.equal(&r.now) {
		return err
	}
	r.end()
	r.now = next
	r.mu.Lock()
	r.problems = map[netip.AddrPort]error{}
	for _, d := range next.directors {
		r.problems[d] = errElsewhere
	}
	r.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	for _, d := range next.directors {
		r.running.Go(func() { r.listen(ctx, d, next.keys) })
	}
	return nil
}

// Close ends hearing.
func (r *Receiver) Close() {
	r.setting.Lock()
	defer r.setting.Unlock()
	r.end()
}

func (r *Receiver) end() {
	r.stop()
	r.running.Wait()
}

// errElsewhere says that an address is another director's.
var errElsewhere = errors.New("it is no address of this host")

// isLocal reports whether an address is this host's.
func isLocal(a netip.Addr) bool {
	here, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(here, func(at net.Addr) bool {
		prefix, err := netip.ParsePrefix(at.String())
		return err == nil && prefix.Addr() == a
	})
}

// listen hears at one address while it is this host's, until the context ends.
func (r *Receiver) listen(ctx context.Context, at netip.AddrPort, by keys) {
	for said := false; ctx.Err() == nil; retry.Sleep(ctx, again) {
		if !r.local(at.Addr()) {
			r.note(at, errElsewhere)
			continue
		}
		g, err := openGate(at, r.own())
		if err != nil {
			if !said {
				r.log.Error("agents cannot report loads here yet", "at", at, "error", err)
			}
			said = true
			r.note(at, err)
			continue
		}
		r.note(at, nil)
		r.log.Info("agents can report loads", "at", at)
		stop := context.AfterFunc(ctx, g.close)
		var known sync.WaitGroup
		known.Go(func() {
			_ = r.hear(ctx, g, g.known, by) // the other socket's error is enough
			g.close()
		})
		err = r.hear(ctx, g, g.others, by)
		stop()
		g.close()
		known.Wait()
		r.note(at, err)
		said = false
	}
}

func (r *Receiver) note(at netip.AddrPort, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems[at] = err
}

// Problem returns why the receiver does not work as configured, or nil.
func (r *Receiver) Problem() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.badKeys
}

// hear takes messages of one of the sockets until it is closed.
func (r *Receiver) hear(ctx context.Context, g *gate, conn *net.UDPConn, by keys) error {
	b := make([]byte, longest+1)
	wrong, since := 0, time.Now()
	for {
		n, from, err := conn.ReadFromUDPAddrPort(b)
		if err != nil {
			return err
		}
		what, answer := r.hearOne(b[:n], by)
		r.counts[what].Add(1)
		if answer != nil {
			_, _ = conn.WriteToUDPAddrPort(answer, from) // it is sent again when it is asked for again
		}
		if what == accepted {
			if err := g.believe(from.Addr(), r.own(), time.Now()); err != nil {
				r.log.Warn("an agent's reports are not kept apart from others", "agent", from, "error", err)
			}
			continue
		}
		if passed := time.Since(since); passed >= slice {
			wrong, since = 0, since.Add(passed)
		}
		if wrong++; wrong >= wrongInSlice {
			retry.Sleep(ctx, slice-time.Since(since))
		}
	}
}

// own is the director's number.
func (r *Receiver) own() uint64 {
	r.hearing.Lock()
	defer r.hearing.Unlock()
	return r.number
}

// hearOne takes one message; answer is the answer for its agent.
func (r *Receiver) hearOne(b []byte, by keys) (what outcome, answer []byte) {
	m, k, err := decode(b, by)
	switch {
	case errors.Is(err, errShort):
		return short, nil
	case errors.Is(err, errForeign):
		return foreign, nil
	case errors.Is(err, errKey):
		return unknown, nil
	case errors.Is(err, errForged):
		return forged, nil
	case err != nil || m.kind != kindReport:
		return malformed, nil
	}
	r.hearing.Lock()
	defer r.hearing.Unlock()
	if m.director != r.number {
		number := message{kind: kindNumber, agent: m.agent, director: r.number}
		return oldEpoch, number.encode(k)
	}
	if m.sequence <= r.sequences[m.agent] {
		return replayed, nil
	}
	if len(r.sequences) >= agentsMost {
		r.number, r.sequences = randomNumber(), map[uint64]uint64{}
	}
	r.sequences[m.agent] = m.sequence
	r.deliver(m.agent, m.interval, m.loads)
	return accepted, nil
}

// Status says where reports come to, and what became of them.
func (r *Receiver) Status() model.LoadStatus {
	status := model.LoadStatus{Listens: []netip.AddrPort{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	elsewhere := len(r.problems) > 0
	for at, err := range r.problems {
		switch {
		case err == nil:
			elsewhere = false
			status.Listens = append(status.Listens, at)
		case !errors.Is(err, errElsewhere):
			elsewhere = false
			status.Problem = fmt.Sprintf("listen at %s: %v", at, err)
		}
	}
	switch {
	case r.badKeys != nil:
		status.Problem = r.badKeys.Error()
	case elsewhere:
		status.Problem = "none of the addresses that agents report to is one of this host"
	}
	slices.SortFunc(status.Listens, netip.AddrPort.Compare)
	for i, name := range outcomeNames {
		status.Messages = append(status.Messages, model.Tallied{Name: name, Count: r.counts[i].Load()})
	}
	return status
}
