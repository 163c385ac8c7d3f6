package bfd

import (
	"math/rand/v2"
	"testing"
	"time"
)

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

var fast = Timers{Tx: 50 * time.Millisecond, Rx: 50 * time.Millisecond, Multiplier: 3}

// Every transition of RFC 5880 6.2 and 6.8.6, from each state by each that the
// neighbor may be in.
func TestTransitions(t *testing.T) {
	type outcome struct {
		State
		Diagnostic
	}
	for _, c := range []struct {
		from, heard State
		want        outcome
	}{
		{AdminDown, AdminDown, outcome{AdminDown, AdministrativelyDown}},
		{AdminDown, Down, outcome{AdminDown, AdministrativelyDown}},
		{AdminDown, Init, outcome{AdminDown, AdministrativelyDown}},
		{AdminDown, Up, outcome{AdminDown, AdministrativelyDown}},
		{Down, AdminDown, outcome{Down, NoDiagnostic}},
		{Down, Down, outcome{Init, NoDiagnostic}},
		{Down, Init, outcome{Up, NoDiagnostic}},
		{Down, Up, outcome{Down, NoDiagnostic}},
		{Init, AdminDown, outcome{Down, NeighborDown}},
		{Init, Down, outcome{Init, NoDiagnostic}},
		{Init, Init, outcome{Up, NoDiagnostic}},
		{Init, Up, outcome{Up, NoDiagnostic}},
		{Up, AdminDown, outcome{Down, NeighborDown}},
		{Up, Down, outcome{Down, NeighborDown}},
		{Up, Init, outcome{Up, NoDiagnostic}},
		{Up, Up, outcome{Up, NoDiagnostic}},
	} {
		now := time.Unix(1e9, 0)
		m := NewMachine(now, 7, fast, rand.New(rand.NewPCG(1, 1)))
		hear := func(s State) {
			m.Receive(now, Packet{State: s, Multiplier: 3, Mine: 9, DesiredTx: ms(50), RequiredRx: ms(50)})
		}
		switch c.from {
		case AdminDown:
			m.Disable(now)
		case Init:
			hear(Down)
		case Up:
			hear(Init)
		}
		if m.state != c.from {
			t.Fatalf("did not get to %v but to %v", c.from, m.state)
		}
		hear(c.heard)
		if state, why := m.State(); (outcome{state, why}) != c.want {
			t.Errorf("%v hears %v: %v, %v; want %v", c.from, c.heard, state, why, c.want)
		}
	}
}

func TestComesUpAndNegotiates(t *testing.T) {
	for _, c := range []struct {
		name             string
		a, b             Timers
		sendA, sendB     time.Duration // intervals
		detectA, detectB time.Duration // how long each waits for the other
	}{
		{"alike", fast, fast, ms(50), ms(50), ms(150), ms(150)},
		{"a is asked to be slower", fast, Timers{ms(20), ms(300), 5}, ms(300), ms(50), ms(250), ms(900)},
		{"b wants to be slow", fast, Timers{ms(400), ms(10), 2}, ms(50), ms(400), ms(800), ms(150)},
		{"both slower than sessions that are down", Timers{2 * slow, 2 * slow, 3}, Timers{3 * slow, slow, 3}, 2 * slow, 3 * slow, 9 * slow, 6 * slow},
		{"one loss is enough", Timers{ms(50), ms(50), 1}, Timers{ms(50), ms(50), 1}, ms(50), ms(50), ms(50), ms(50)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, c.a, c.b)
			p.until(20*time.Second, Up, Up)
			p.run(20 * time.Second) // polls have ended
			a, b := p.ends[0], p.ends[1]
			if a.Interval() != c.sendA || b.Interval() != c.sendB {
				t.Errorf("they send every %v and %v, want %v and %v", a.Interval(), b.Interval(), c.sendA, c.sendB)
			}
			if a.Detection() != c.detectA || b.Detection() != c.detectB {
				t.Errorf("they wait %v and %v, want %v and %v", a.Detection(), b.Detection(), c.detectA, c.detectB)
			}
			if a.poll || b.poll {
				t.Error("they still poll")
			}
			for i, e := range p.ends {
				e.take()
				p.run(10 * time.Second)
				checkSpacing(t, e.take(), e.Interval(), []Timers{c.a, c.b}[i].Multiplier)
			}
			p.until(0, Up, Up)
		})
	}
}

// checkSpacing checks intervals against the jitter of 6.8.7, with the moment by which
// the test's time passes.
func checkSpacing(t *testing.T, sent []sending, interval time.Duration, multiplier uint8) {
	t.Helper()
	least, most := interval*3/4, interval
	if multiplier == 1 {
		most = interval * 9 / 10
	}
	var short, long time.Duration
	for i := range sent[1:] {
		gap := sent[i+1].at.Sub(sent[i].at)
		if gap < least || gap > most+time.Millisecond {
			t.Fatalf("packets %v apart, want %v to %v", gap, least, most)
		}
		if short == 0 || gap < short {
			short = gap
		}
		long = max(long, gap)
	}
	if len(sent) > 50 && long-short < interval/10 {
		t.Errorf("packets are %v to %v apart: where is the jitter?", short, long)
	}
}

func TestLoss(t *testing.T) {
	p := newPair(t, fast, fast)
	p.until(5*time.Second, Up, Up)
	p.run(2 * time.Second)
	a, b := p.ends[0], p.ends[1]
	b.dead = true
	if took := p.until(time.Second, Down, Up); took > ms(151) || took < ms(100) {
		t.Errorf("found after %v, want 100 to 151 ms", took)
	}
	if a.diagnostic != DetectionExpired || a.Remote().Mine != 0 {
		t.Errorf("%v, remote %+v; want that the time has expired and the neighbor is forgotten", a.diagnostic, a.Remote())
	}
	a.take()
	p.run(10 * time.Second)
	sent := a.take()
	checkSpacing(t, sent[1:], slow, 3) // the first says that it is down
	if last := sent[len(sent)-1]; last.Yours != 0 || last.State != Down || last.Poll {
		t.Errorf("to a neighbor that is gone: %+v", last)
	}
	b.dead = false
	p.until(5*time.Second, Up, Up)
}

// One direction is enough to take both ends down, and each says why.
func TestOneWayLoss(t *testing.T) {
	p := newPair(t, fast, fast)
	p.until(5*time.Second, Up, Up)
	p.run(2 * time.Second)
	p.ends[0].cut = true
	// The one that misses the other knows no session any more, which anybody could say: it is
	// believed when its other packets have stopped.
	p.until(ms(400), Down, Down)
	if a, b := p.ends[0].diagnostic, p.ends[1].diagnostic; a != NeighborDown || b != DetectionExpired {
		t.Errorf("%v and %v", a, b)
	}
	p.run(30 * time.Second)
	if p.ends[0].state == Up || p.ends[1].state == Up {
		t.Error("up over a path of one direction")
	}
	p.ends[0].cut = false
	p.until(5*time.Second, Up, Up)
}

func TestHold(t *testing.T) {
	p := newPair(t, fast, fast)
	p.ends[0].Hold(p.now, PathDown)
	p.run(10 * time.Second)
	if p.ends[0].state != Down || p.ends[1].state == Up {
		t.Fatalf("%v and %v, while one is held down", p.ends[0].state, p.ends[1].state)
	}
	p.ends[0].Hold(p.now, NoDiagnostic)
	p.until(3*time.Second, Up, Up)
	p.run(2 * time.Second)
	p.ends[0].Hold(p.now, ForwardingReset)
	if took := p.until(time.Second, Down, Down); took > ms(3) {
		t.Errorf("the neighbor heard of it after %v", took)
	}
	if heard := p.ends[1].Remote(); heard.Diagnostic != ForwardingReset || p.ends[1].diagnostic != NeighborDown {
		t.Errorf("the neighbor heard %v, and says %v", heard.Diagnostic, p.ends[1].diagnostic)
	}
	p.run(20 * time.Second)
	if p.ends[0].state != Down || p.ends[1].state == Up {
		t.Errorf("%v and %v, while one is held down", p.ends[0].state, p.ends[1].state)
	}
	p.ends[0].Hold(p.now, NoDiagnostic)
	p.until(3*time.Second, Up, Up)
}

func TestDisable(t *testing.T) {
	p := newPair(t, fast, fast)
	p.until(5*time.Second, Up, Up)
	p.run(2 * time.Second)
	p.ends[0].Disable(p.now)
	p.until(ms(3), AdminDown, Down)
	if p.ends[1].diagnostic != NeighborDown || p.ends[1].Remote().State != AdminDown {
		t.Errorf("the neighbor takes it for %v", p.ends[1].diagnostic)
	}
	if p.ends[0].Gone(p.now) {
		t.Error("gone before the neighbor's time is over")
	}
	p.run(3 * time.Second)
	if !p.ends[0].Gone(p.now) {
		t.Error("not gone after 3 seconds")
	}
}

// A neighbor that was started anew has another discriminator, and is Down.
func TestNeighborRestarts(t *testing.T) {
	p := newPair(t, fast, fast)
	p.until(5*time.Second, Up, Up)
	p.run(2 * time.Second)
	p.ends[1] = &end{Machine: NewMachine(p.now, 77, fast, rand.New(rand.NewPCG(5, 5))), delay: ms(1)}
	p.until(ms(151), Down, Down)
	if p.ends[0].diagnostic != NeighborDown {
		t.Errorf("the neighbor is said to be lost: %v", p.ends[0].diagnostic)
	}
	p.until(5*time.Second, Up, Up)
	if p.ends[0].Remote().Mine != 77 {
		t.Errorf("the neighbor is %d, want 77", p.ends[0].Remote().Mine)
	}
}

// Failures are counted: the neighbor is silent, or says Down, or this end is held. That one
// end has switched the session off is none.
func TestLosses(t *testing.T) {
	now := time.Unix(1e9, 0)
	says := func(s State) Packet {
		return Packet{State: s, Multiplier: 3, Mine: 9, DesiredTx: ms(50), RequiredRx: ms(50)}
	}
	for name, c := range map[string]struct {
		end    func(m *Machine)
		losses uint64
		last   Diagnostic
	}{
		"silence":                {func(m *Machine) { m.Advance(now.Add(time.Hour)) }, 1, DetectionExpired},
		"the neighbor is down":   {func(m *Machine) { m.Receive(now, says(Down)) }, 1, NeighborDown},
		"held":                   {func(m *Machine) { m.Hold(now, PathDown) }, 1, PathDown},
		"the neighbor ends it":   {func(m *Machine) { m.Receive(now, says(AdminDown)) }, 0, NoDiagnostic},
		"this end ends it":       {func(m *Machine) { m.Disable(now) }, 0, NoDiagnostic},
		"it was not up any more": {func(m *Machine) { m.Receive(now, says(AdminDown)); m.Hold(now, PathDown) }, 0, NoDiagnostic},
	} {
		m := NewMachine(now, 7, fast, rand.New(rand.NewPCG(1, 1)))
		m.Receive(now, says(Init))
		if m.state != Up {
			t.Fatalf("%s: the session is %v", name, m.state)
		}
		c.end(m)
		if losses, last := m.Losses(); losses != c.losses || last != c.last {
			t.Errorf("%s: %d losses, the last by %v; want %d by %v", name, losses, last, c.losses, c.last)
		}
	}
}
