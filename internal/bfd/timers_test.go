package bfd

import (
	"testing"
	"time"
)

// RFC 5880 6.8.3 about changes while the session is Up: each end may trust the
// other's old promise until the poll has ended.
func TestPollSequence(t *testing.T) {
	p := newPair(t, fast, fast)
	p.until(5*time.Second, Up, Up)
	p.run(2 * time.Second)
	a, b := p.ends[0], p.ends[1]

	t.Run("slower", func(t *testing.T) {
		b.cut = true // no Final comes
		a.Set(p.now, Timers{ms(100), ms(50), 3})
		p.run(ms(60))
		if a.Interval() != ms(50) || !a.poll {
			t.Errorf("sends every %v, polls %v; want 50 ms until the neighbor knows", a.Interval(), a.poll)
		}
		b.cut = false
		p.run(ms(120))
		if a.Interval() != ms(100) || a.poll {
			t.Errorf("sends every %v, polls %v; want 100 ms after the poll", a.Interval(), a.poll)
		}
		if b.Detection() != ms(300) {
			t.Errorf("the neighbor waits %v", b.Detection())
		}
	})
	t.Run("faster", func(t *testing.T) {
		a.Set(p.now, fast)
		if a.Interval() != ms(50) {
			t.Errorf("sends every %v, want 50 ms at once", a.Interval())
		}
		p.run(ms(120))
	})
	t.Run("less patient", func(t *testing.T) {
		b.cut = true
		a.Set(p.now, Timers{ms(50), ms(20), 3})
		p.run(ms(60))
		if a.Detection() != ms(150) {
			t.Errorf("waits %v, want 150 ms until the neighbor knows", a.Detection())
		}
		b.cut = false
		b.Set(p.now, Timers{ms(20), ms(50), 3})
		p.run(ms(200))
		if a.Detection() != ms(60) || b.Interval() != ms(20) {
			t.Errorf("waits %v for what comes every %v; want 60 and 20 ms", a.Detection(), b.Interval())
		}
	})
	t.Run("changed again meanwhile", func(t *testing.T) {
		b.cut = true
		a.Set(p.now, Timers{ms(100), ms(20), 3})
		p.run(ms(10))
		a.Set(p.now, Timers{ms(40), ms(20), 3})
		a.Set(p.now, Timers{ms(80), ms(20), 3})
		b.cut = false
		if a.Interval() != ms(50) {
			t.Errorf("sends every %v, want 50 ms, which it never promised to end", a.Interval())
		}
		p.run(ms(500))
		if a.Interval() != ms(80) || a.poll || a.pollAgain {
			t.Errorf("sends every %v, polls %v; want 80 ms", a.Interval(), a.poll)
		}
	})
	if a.state != Up || b.state != Up {
		t.Errorf("%v and %v", a.state, b.state)
	}
}

// A Poll is answered at once, whatever the state and the timer, by a Final without Poll.
func TestFinal(t *testing.T) {
	p := newPair(t, fast, fast)
	for _, state := range []State{Down, Up} {
		m := p.ends[0]
		for _, due := m.Due(p.now); due; {
			_, due = m.Due(p.now)
		}
		m.Receive(p.now, Packet{State: state, Poll: true, Multiplier: 3, Mine: 9, DesiredTx: ms(50), RequiredRx: ms(50)})
		m.poll = true // its own
		answer, due := m.Due(p.now)
		if !due || !answer.Final || answer.Poll || answer.Yours != 9 {
			t.Errorf("%v: %v %+v", m.state, due, answer)
		}
	}
}

// When this end takes a session down it says so once, and answers no Poll for a while: the answer
// would bring the neighbor to Init before its clients have seen that the session was Down.
func TestDownIsLeftToBeSeen(t *testing.T) {
	p := newPair(t, fast, fast)
	p.until(5*time.Second, Up, Up)
	m, now := p.ends[0].Machine, p.now
	none := func(when string, until time.Time) {
		t.Helper()
		if p, due := m.Due(now); due {
			t.Errorf("%s it sends %+v", when, p)
		}
		if next := m.Next(); next.IsZero() || next.Before(now) || next.After(until) {
			t.Errorf("%s there is something to do at %v, want until %v", when, next, until)
		}
	}
	poll := Packet{State: Down, Diagnostic: NeighborDown, Poll: true, Multiplier: 3, Mine: 9, DesiredTx: ms(1000), RequiredRx: ms(50)}
	m.Hold(now, ForwardingReset)
	if said, due := m.Due(now); !due || said.State != Down || said.Diagnostic != ForwardingReset || said.Final {
		t.Errorf("it says %v %+v", due, said)
	}
	m.Receive(now, poll)
	none("at once", now.Add(hush))
	end := now.Add(hush)
	now = end.Add(-1)
	none("a moment before the end", end)
	now = end
	if said, due := m.Due(now); !due || !said.Final || said.State != Down {
		t.Errorf("in the end it says %v %+v, want an answer", due, said)
	}
	// And a session that may come up again answers.
	m.Hold(now, NoDiagnostic)
	m.Receive(now, Packet{State: Init, Multiplier: 3, Mine: 9, DesiredTx: ms(50), RequiredRx: ms(50)})
	m.Hold(now, PathDown)
	m.Hold(now, NoDiagnostic)
	m.Receive(now, poll)
	if said, due := m.Due(now); !due || !said.Final {
		t.Errorf("when it is not held down any more, it says %v %+v, want an answer", due, said)
	}
}

func TestNeighborWantsNoPackets(t *testing.T) {
	p := newPair(t, fast, fast)
	p.until(5*time.Second, Up, Up)
	p.run(2 * time.Second)
	m, now := p.ends[0], p.now
	none := Packet{State: Up, Multiplier: 3, Mine: 1001, Yours: 1000, DesiredTx: ms(50)}
	for range 20 {
		now = now.Add(ms(50))
		m.Receive(now, none)
		m.Advance(now)
		if sent, due := m.Due(now); due {
			t.Fatalf("sent %+v", sent)
		}
	}
	none.Poll = true
	m.Receive(now, none)
	if sent, due := m.Due(now); !due || !sent.Final {
		t.Errorf("a poll is answered by %v, %+v", due, sent)
	}
	// When the neighbor is gone, so is its wish: the next neighbor must hear this end.
	now = now.Add(ms(150))
	m.Advance(now)
	if _, due := m.Due(now); !due || m.state != Down {
		t.Errorf("%v, and says so: %v", m.state, due)
	}
	if _, due := m.Due(now.Add(slow)); !due {
		t.Error("silent for good")
	}
}

// In the neighbor's demand mode this end sends nothing without need; it never asks for
// demand mode itself.
func TestDemand(t *testing.T) {
	p := newPair(t, fast, fast)
	p.until(5*time.Second, Up, Up)
	p.run(2 * time.Second)
	m, now := p.ends[0], p.now
	demand := Packet{State: Up, Demand: true, Multiplier: 3, Mine: 1001, Yours: 1000, DesiredTx: ms(50), RequiredRx: ms(50)}
	for range 20 {
		now = now.Add(ms(50))
		m.Receive(now, demand)
		m.Advance(now)
		if sent, due := m.Due(now); due {
			t.Fatalf("sent %+v", sent)
		}
	}
	demand.Poll = true
	m.Receive(now, demand)
	if sent, due := m.Due(now); !due || !sent.Final || sent.Demand {
		t.Errorf("a poll in demand mode is answered by %v, %+v", due, sent)
	}
	m.Set(now, Timers{ms(60), ms(50), 3})
	now = now.Add(ms(50))
	if sent, due := m.Due(now); !due || !sent.Poll {
		t.Errorf("its own poll: %v, %+v", due, sent)
	}
	demand.Poll, demand.Final = false, true
	m.Receive(now, demand)
	if sent, due := m.Due(now.Add(ms(60))); due {
		t.Errorf("sent %+v after the poll", sent)
	}
	m.Advance(now.Add(ms(150)))
	if m.state != Down || m.diagnostic != DetectionExpired {
		t.Errorf("%v, %v: silence is no good sign here", m.state, m.diagnostic)
	}
}
