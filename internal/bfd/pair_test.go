package bfd

import (
	"math/rand/v2"
	"testing"
	"time"
)

// pair is two machines and the wires between them, in a time of their own.
type pair struct {
	t    *testing.T
	now  time.Time
	ends [2]*end
}

// end is one machine, and what becomes of its packets.
type end struct {
	*Machine
	cut   bool // its packets are lost
	dead  bool // it does nothing
	sent  []sending
	delay time.Duration // of its packets, on the wire
	under []sending     // way
}

type sending struct {
	at time.Time
	Packet
}

func newPair(t *testing.T, a, b Timers) *pair {
	p := &pair{t: t, now: time.Unix(1e9, 0)}
	for i, timers := range []Timers{a, b} {
		machine := NewMachine(p.now, uint32(1000+i), timers, rand.New(rand.NewPCG(uint64(i), 1)))
		p.ends[i] = &end{Machine: machine, delay: time.Millisecond}
	}
	return p
}

// step lets a moment pass.
func (p *pair) step() {
	const moment = 500 * time.Microsecond
	p.now = p.now.Add(moment)
	for i, e := range p.ends {
		for len(e.under) > 0 && !p.now.Before(e.under[0].at.Add(e.delay)) {
			arrived := e.under[0].Packet
			e.under = e.under[1:]
			if other := p.ends[1-i]; !other.dead && (arrived.Yours == 0 || arrived.Yours == other.local) {
				other.Receive(p.now, arrived)
			}
		}
	}
	for _, e := range p.ends {
		if e.dead {
			continue
		}
		if next := e.Next(); next.IsZero() || next.After(p.now) {
			if packet, due := e.Due(p.now); due {
				p.t.Fatalf("Next says %v, and %v before %+v is due", next, next.Sub(p.now), packet)
			}
			continue
		}
		e.Advance(p.now)
		for packet, due := e.Due(p.now); due; packet, due = e.Due(p.now) {
			e.sent = append(e.sent, sending{p.now, packet})
			if !e.cut {
				e.under = append(e.under, sending{p.now, packet})
			}
		}
	}
}

// run lets time pass.
func (p *pair) run(d time.Duration) {
	for end := p.now.Add(d); p.now.Before(end); {
		p.step()
	}
}

// until lets time pass until both ends are in those states, and returns how long it took.
func (p *pair) until(limit time.Duration, a, b State) time.Duration {
	p.t.Helper()
	began := p.now
	for p.ends[0].state != a || p.ends[1].state != b {
		if p.now.Sub(began) > limit {
			p.t.Fatalf("after %v: %v (%v) and %v (%v), want %v and %v", limit,
				p.ends[0].state, p.ends[0].diagnostic, p.ends[1].state, p.ends[1].diagnostic, a, b)
		}
		p.step()
	}
	return p.now.Sub(began)
}

// since returns what an end has sent since then, and forgets it.
func (e *end) take() []sending {
	sent := e.sent
	e.sent = nil
	return sent
}
