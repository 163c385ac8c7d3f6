package bfd

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// Two routers with the same address, one of them in a VRF: a packet is of the session in whose network it
// came, and a VRF that is not there is a problem of its session alone.
func TestNeighborsWithEqualAddresses(t *testing.T) {
	lab := netlab.ForTest(t)
	here, first, second := lab.Host("director"), lab.Host("first"), lab.Host("second")
	const own, theirs = "10.9.0.2", "10.9.0.1"
	links := map[string]*netlab.Link{}
	for vrf, router := range map[string]*netlab.Host{"": first, "eth1": second} {
		name := map[bool]string{true: "eth0", false: vrf}[vrf == ""]
		links[vrf] = lab.Link(here, router, netlab.LinkOptions{NameA: name, A: []string{own + "/24"}, B: []string{theirs + "/24"}})
	}
	want := func(vrf string) model.BFDSession {
		return model.BFDSession{Neighbor: netip.MustParseAddr(theirs), VRF: vrf, Interfaces: []string{"eth0"},
			Timers: model.BFDTimers{Interval: model.Duration(time.Minute), Multiplier: 3}, RestartTime: model.Duration(time.Hour)}
	}
	s := NewSpeaker(still{}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	defer s.close()
	set := func(vrfs ...string) {
		t.Helper()
		if err := here.Do(func() error {
			var wanted []model.BFDSession
			var found []finding
			for _, vrf := range vrfs {
				wanted = append(wanted, want(vrf))
				found = append(found, find(&wanted[len(wanted)-1]))
			}
			s.set(time.Now(), wanted, found, map[string]Forwarding{"eth0": Forwards})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	set("", "eth1", "nowhere")
	if len(s.problems) != 1 || len(s.receivers) != 2 {
		t.Fatalf("of three sockets %d are open, and these are not: %v", len(s.receivers), s.problems)
	}
	for p, problem := range s.problems {
		if p.vrf != "nowhere" || !strings.Contains(problem, "there is no interface nowhere") {
			t.Errorf("%s has the problem %q", p.text(), problem)
		}
	}
	packet := Packet{State: Down, Multiplier: 3, Mine: 9, DesiredTx: time.Minute, RequiredRx: time.Minute}
	send := func(from *netlab.Host, packets int) {
		t.Helper()
		if err := from.Do(func() error {
			conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(theirs)}, &net.UDPAddr{IP: net.ParseIP(own), Port: singleHopPort})
			if err != nil {
				return err
			}
			defer conn.Close()
			raw, err := conn.SyscallConn()
			if err != nil {
				return err
			}
			control := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, gtsm) })
			for range packets {
				_, failed := conn.Write((&guard{}).sign(packet, nil))
				err = errors.Join(err, failed)
			}
			return errors.Join(control, err)
		}); err != nil {
			t.Fatal(err)
		}
	}
	received := func() string {
		for _, r := range s.receivers {
			s.receive(r)
		}
		return fmt.Sprintf("%d %d", s.sessions[keyOf(want(""))].received, s.sessions[keyOf(want("eth1"))].received)
	}
	eventually := func(what, want string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); received() != want; time.Sleep(time.Millisecond) { // between two looks
			if time.Now().After(end) {
				t.Fatalf("%s: received are %s packets, want %s", what, received(), want)
			}
		}
	}
	send(first, 2)
	eventually("of the router in no VRF", "2 0")
	send(second, 3)
	eventually("of the router in the VRF", "2 3")

	// Each answers in its own network.
	for _, session := range s.sessions {
		if session.want.VRF == "nowhere" {
			continue
		}
		if err := here.Do(func() error {
			session.next = time.Now()
			s.speak(time.Now(), session)
			return nil
		}); err != nil || session.problem != "" || session.left == 0 {
			t.Errorf("%s: %d packets are sent (%v %s)", session.want.Name(), session.left, err, session.problem)
		}
	}
	for vrf, link := range links {
		counters, err := link.B.Counters()
		if err != nil || counters.RxPackets == 0 {
			t.Errorf("the router of %q has received %d packets (%v)", vrf, counters.RxPackets, err)
		}
	}

	// A device that is made anew is another one.
	before := s.sessions[keyOf(want("eth1"))].device
	if out, err := here.Command(t.Context(), "ip", "link", "del", "eth1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	set("", "eth1")
	again := lab.Link(here, second, netlab.LinkOptions{NameA: "eth1", NameB: "again", A: []string{own + "/24"}, B: []string{theirs + "/24"}})
	set("", "eth1")
	if now := s.sessions[keyOf(want("eth1"))].device; now == before || now != again.A.Index {
		t.Errorf("the device is number %d, before %d, want %d; problems %v", now, before, again.A.Index, s.problems)
	}
	send(second, 1)
	eventually("of the router in the VRF, again", "2 4")
}
