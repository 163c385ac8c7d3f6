package bfd

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// still is a datapath that is always there.
type still struct{}

func (still) Interface(string) Forwarding { return Forwards }
func (still) Changed() <-chan struct{}    { return nil }

// A packet costs no memory, so that the collector has nothing to do: neither one that is
// received, through a real socket, nor one that is sent.
func TestNoAllocation(t *testing.T) {
	lab := netlab.ForTest(t)
	host := lab.Host("director")
	if err := host.Do(func() error { return exchange(t) }); err != nil {
		t.Fatal(err)
	}
}

func exchange(t *testing.T) error {
	neighbor, own := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1")
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		return err
	}
	authentication := &model.BFDAuthentication{Type: model.MeticulousKeyedSHA1, KeyID: 1, PasswordFile: secret}
	want := model.BFDSession{Authentication: authentication, Neighbor: neighbor, Source: own, Multihop: true, Interfaces: []string{"lo"},
		Timers: model.BFDTimers{Interval: model.Duration(time.Minute), Multiplier: 3}, RestartTime: model.Duration(time.Hour)}
	s := NewSpeaker(still{}, slog.New(slog.DiscardHandler))
	s.set(time.Now(), []model.BFDSession{want}, []finding{find(&want)}, map[string]Forwarding{"lo": Forwards})
	defer s.close()
	session, r := s.sessions[keyOf(want)], s.receivers[place{kind: kind{multihop: true}, local: own}]
	if r == nil {
		return fmt.Errorf("no socket: %v", s.problems)
	}
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: neighbor.AsSlice()}, &net.UDPAddr{IP: own.AsSlice(), Port: multihopPort})
	if err != nil {
		return err
	}
	defer conn.Close()
	packet := Packet{State: Init, Multiplier: 3, Mine: 9, Yours: session.Discriminator(), DesiredTx: time.Minute, RequiredRx: time.Minute}
	up := packet
	up.State = Up
	theirs := &guard{password: find(&want).password}
	n, wire := 0, make([]byte, 0, maxPacket)
	turn := func() {
		wire = theirs.sign([]Packet{packet, up}[min(n, 1)], wire[:0])
		if _, err := conn.Write(wire); err != nil {
			t.Error(err)
		}
		s.receive(r) // loopback has delivered it
		now := time.Now()
		session.next = now
		s.speak(now, session)
		n++
	}
	turn()
	if allocations := testing.AllocsPerRun(200, turn); allocations > 0 {
		t.Errorf("%v allocations for a packet received and one sent", allocations)
	}
	if session.state != Up || session.received < 200 || session.left < 200 {
		t.Errorf("%v, %d received, %d sent: this was not what was to be measured", session.state, session.received, session.left)
	}
	return nil
}
