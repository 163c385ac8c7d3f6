package bfd

import (
	"math/rand/v2"
	"testing"
	"time"
)

// FuzzMachine gives a session packets, times and wishes at random. Whatever they are,
// what RFC 5880 forbids does not happen.
func FuzzMachine(f *testing.F) {
	f.Add([]byte("\x00\x01\x20\x00\x02\x20\x04\x00\x10\x05\x00\x03"))
	f.Add([]byte("\x00\xc1\x01\x01\x02\x20\x02\x00\x10\x03\x00\x03\x00\x41\xff\x04\x00\xff"))
	f.Fuzz(func(t *testing.T, script []byte) {
		h := &harsh{T: t, now: time.Unix(1e9, 0), held: NoDiagnostic}
		h.Machine = NewMachine(h.now, 7, fast, rand.New(rand.NewPCG(1, 2)))
		for ; len(script) >= 3; script = script[3:] {
			h.do(script[0], script[1], script[2])
			h.check()
		}
	})
}

// harsh is a machine and what must hold of it.
type harsh struct {
	*testing.T
	*Machine
	now      time.Time
	held     Diagnostic
	disabled bool
	last     time.Time // when a packet was sent by the timer
	least    time.Duration
}

func (h *harsh) do(what, a, b byte) {
	before := h.state
	var heard bool
	switch what % 6 {
	case 0, 1:
		heard = true
		h.Receive(h.now, Packet{State: State(a >> 6), Poll: a&1 != 0, Final: a&2 != 0, Demand: a&4 != 0, Multiplier: b%5 + 1,
			Mine: uint32(a&8) + 9, Yours: uint32(a & 16), DesiredTx: time.Duration(b) * ms(7), RequiredRx: time.Duration(b%16) * ms(20)})
	case 2:
		h.now = h.now.Add(time.Duration(a) * time.Duration(b) * time.Millisecond / 4)
		h.Advance(h.now)
	case 3:
		h.held = [...]Diagnostic{NoDiagnostic, PathDown, ForwardingReset}[a%3]
		h.Hold(h.now, h.held)
	case 4:
		h.Set(h.now, Timers{Tx: time.Duration(a)*ms(11) + ms(10), Rx: time.Duration(b)*ms(13) + ms(10), Multiplier: a%6 + 1})
	case 5:
		if h.disabled = a < 16 || h.disabled; h.disabled {
			h.Disable(h.now)
		}
	}
	if h.state == Up && before != Up && !heard {
		h.Fatalf("up, and nobody was heard")
	}
}

func (h *harsh) check() {
	h.Helper()
	switch {
	case h.disabled && h.state != AdminDown:
		h.Fatalf("%v, although switched off", h.state)
	case h.held != NoDiagnostic && h.state > Down:
		h.Fatalf("%v, although held down", h.state)
	}
	h.Advance(h.now)
	next := h.Next()
	for n := 0; ; n++ {
		told := h.changed
		p, due := h.Due(h.now)
		if !due {
			break
		}
		switch {
		case n > 2:
			h.Fatal("does not stop to send")
		case next.IsZero() || next.After(h.now):
			h.Fatalf("Next said %v, and %+v is due at %v", next, p, h.now)
		case p.Poll && p.Final, p.Mine != 7, p.Demand, p.Multiplier == 0, p.State != h.state, p.Yours != h.remote.Mine:
			h.Fatalf("sends %+v", p)
		case p.State != Up && p.DesiredTx < slow:
			h.Fatalf("promises %v while %v", p.DesiredTx, p.State)
		}
		if p.Final {
			continue
		}
		if gap := h.now.Sub(h.last); !told && !h.last.IsZero() && gap < min(h.least, h.Interval())*3/4 {
			h.Fatalf("sends %v after the packet before, where %v is least", gap, h.least)
		}
		h.last, h.least = h.now, h.Interval()
	}
	if next := h.Next(); !next.IsZero() && !next.After(h.now) {
		h.Fatalf("at %v all is done, and Next says %v: this would never end", h.now, next)
	}
}
