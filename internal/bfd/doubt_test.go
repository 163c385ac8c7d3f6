package bfd

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// Packets that do not name the session change nothing while those of the neighbor come, however
// many there are and whatever they say; nor do they when the neighbor asks for much slower ones.
func TestStrangersEndNoSession(t *testing.T) {
	for _, state := range []State{Down, AdminDown} {
		t.Run(state.String(), func(t *testing.T) {
			p := newPair(t, fast, fast)
			p.until(5*time.Second, Up, Up)
			a := p.ends[0]
			before := a.Remote()
			for range 4000 { // for two seconds
				p.step()
				stranger := Packet{State: state, Poll: true, Multiplier: 255, Mine: 0xdeadbeef, DesiredTx: time.Minute, RequiredRx: time.Minute}
				if why := a.Receive(p.now, stranger); why != DiscardDoubted {
					t.Fatalf("it is taken as %v", why)
				}
			}
			if a.state != Up || p.ends[1].state != Up || a.Remote().Mine != before.Mine || a.Detection() != ms(150) {
				t.Errorf("the session is %v and %v, with %+v", a.state, p.ends[1].state, a.Remote())
			}
		})
	}
}

// A neighbor that sends only such packets is believed when the detection time of its others
// is over, and not earlier.
func TestDoubtEnds(t *testing.T) {
	for _, c := range []struct {
		says   State
		proved bool // it has signed it
		after  time.Duration
		losses uint64
	}{
		{Down, false, ms(150), 1},
		{AdminDown, false, ms(150), 1}, // anybody can say that
		{Down, true, 0, 1},
		{AdminDown, true, 0, 0}, // nothing is broken
	} {
		t.Run(fmt.Sprint(c.says, c.proved), func(t *testing.T) {
			now := time.Unix(1e9, 0)
			m := NewMachine(now, 7, fast, rand.New(rand.NewPCG(1, 1)))
			m.proved = c.proved
			m.Receive(now, Packet{State: Init, Multiplier: 3, Mine: 9, Yours: 7, DesiredTx: ms(50), RequiredRx: ms(50)})
			began := now
			for m.state == Up {
				now = now.Add(ms(10))
				m.Advance(now)
				if m.state == Up {
					m.Receive(now, Packet{State: c.says, Multiplier: 3, Mine: 77, DesiredTx: slow, RequiredRx: slow})
				}
			}
			if took := now.Sub(began) - ms(10); c.after == 0 && took > 0 || c.after > 0 && took != c.after-ms(10) {
				t.Errorf("it is believed after %v, want %v", took+ms(10), c.after)
			}
			losses, _ := m.Losses()
			if _, why := m.State(); why != NeighborDown || losses != c.losses {
				t.Errorf("the session is down by %v, and %d losses are counted, want %d", why, losses, c.losses)
			}
			if m.Remote().Mine != 77 {
				t.Errorf("the neighbor is %d, not 77", m.Remote().Mine)
			}
		})
	}
}
