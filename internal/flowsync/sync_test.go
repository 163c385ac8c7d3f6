package flowsync

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// TestDirectorsShareFlows: what was remembered before they met, what is learned then,
// both ways; and again when one of them is another process.
func TestDirectorsShareFlows(t *testing.T) {
	d, port := newDirectory(), freePort(t)
	one, two := newMemory(), newMemory()
	for i := range uint16(2000) {
		one.learn(flowOf(1+i, model.FlowOpen))
	}
	one.learnNAT(someNAT()...)
	two.learn(flowOf(5000, model.FlowOpen))
	first, second := start(t, d, one, 1), start(t, d, two, 2)
	first.joinGroup(1, 2, port)
	second.joinGroup(2, 2, port)
	if missing := await(t, second); len(missing) > 0 {
		t.Fatalf("%v have not shared all that they remember", missing)
	}
	eventually(t, "the second director knows everything", func() bool {
		for i := range uint16(2000) {
			if !two.knows(flowOf(1+i, model.FlowOpen)) {
				return false
			}
		}
		return true
	})
	eventually(t, "the second director knows the flows of full NAT", func() bool {
		return !slices.ContainsFunc(someNAT(), func(f model.NATFlow) bool { return !two.knowsNAT(f) })
	})
	eventually(t, "the first director knows everything", func() bool { return one.knows(flowOf(5000, model.FlowOpen)) })
	eventually(t, "flows are shared with both", func() bool { return !first.Status()[0].Listens.IsZero() && !second.Status()[0].Listens.IsZero() })
	one.learn(flowOf(6000, model.FlowOpen), flowOf(1, model.FlowClosing))
	two.learn(flowOf(6001, model.FlowReset))
	later := someNAT()[0]
	later.Own, later.State = netip.MustParseAddrPort("10.0.0.2:2000"), model.FlowReset
	two.learnNAT(later)
	eventually(t, "what is learned is shared", func() bool {
		return one.knowsNAT(later) && two.knows(flowOf(6000, model.FlowOpen)) && two.knows(flowOf(1, model.FlowClosing)) && one.knows(flowOf(6001, model.FlowReset))
	})
	status := second.Status()[0]
	if status.Director != member(1) || status.Shares.IsZero() || status.Heard < 2002 || status.Garbage != 0 || status.Slow != 0 || status.Problem != "" {
		t.Errorf("the status is %+v", status)
	}

	one.count(counts()...)
	hears := func(want []model.ServiceResets) func() bool {
		return func() bool { return slices.Equal(two.hears(member(1)), want) }
	}
	eventually(t, "counts of resets are shared", hears(counts()))
	one.count()
	eventually(t, "that there are no more is shared, too", hears(nil))
	one.count(counts()...)
	eventually(t, "counts are shared again", hears(counts()))

	second.Close()
	if got := two.hears(member(1)); got != nil {
		t.Errorf("of a director that is not heard any more %+v is counted", got)
	}
	three := newMemory()
	again := start(t, d, three, 2)
	again.joinGroup(2, 2, port)
	eventually(t, "another process gets everything", func() bool {
		return three.knows(flowOf(6000, model.FlowOpen)) && three.knows(flowOf(6001, model.FlowReset))
	})
	three.learn(flowOf(7000, model.FlowOpen))
	eventually(t, "and shares", func() bool { return one.knows(flowOf(7000, model.FlowOpen)) })
}

// TestNobodyIsThere: a start does not wait for directors that are dead.
func TestNobodyIsThere(t *testing.T) {
	d := newDirectory()
	s := start(t, d, newMemory(), 1)
	d.write(member(2), "of a process that has ended")
	s.joinGroup(1, 3, freePort(t))
	if missing := await(t, s); len(missing) > 0 {
		t.Errorf("%v are waited for", missing)
	}
	for _, p := range s.Status() {
		if p.Problem == "" || !p.Shares.IsZero() {
			t.Errorf("the status is %+v, want a problem", p)
		}
	}
}

// TestNoSignOfLife: of two directors that do not answer, a start waits less for the one
// that shows no life. It waits for one that answers in any case.
func TestNoSignOfLife(t *testing.T) {
	port := freePort(t)
	unresponsive(t, member(3), port)
	remembers := newMemory()
	remembers.learn(flowOf(1, model.FlowOpen))
	d, hearsay := newDirectory(), newDirectory()
	cutOff := start(t, d, remembers, 2)
	own := newMemory()
	s, believer := start(t, d, own, 1), start(t, hearsay, newMemory(), 4)
	d.write(member(3), "of a host that is gone")
	hearsay.write(member(3), "of a host that is gone")
	d.forget(member(3))
	d.forget(member(2))
	cutOff.joinGroup(2, 2, port)
	s.joinGroup(1, 3, port)
	believer.Set([]netip.Addr{member(4)}, []netip.Addr{member(3)}, port)
	if missing := await(t, s); len(missing) > 0 {
		t.Errorf("%v are waited for", missing)
	}
	if !believer.peers[0].awaited() {
		t.Error("the start that knows of no life has waited as long as the other one")
	}
	if !own.knows(flowOf(1, model.FlowOpen)) {
		t.Error("the start has not waited for a director that is there, and only shows no life")
	}
	if missing := await(t, believer); len(missing) > 0 {
		t.Errorf("%v are waited for for ever", missing)
	}
}

// unresponsive makes an address one that answers no SYN, like a host that is gone: its queue of
// connections that nobody accepts is full.
func unresponsive(t *testing.T, at netip.Addr, port uint16) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: at.As4(), Port: int(port)}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(at, port).String(), time.Second)
		if err != nil {
			return
		}
		t.Cleanup(func() { c.Close() })
	}
}

// TestStrangers: a process that has not written its fingerprint among the group's is
// neither served nor heard.
func TestStrangers(t *testing.T) {
	d, port := newDirectory(), freePort(t)
	one, two := newMemory(), newMemory()
	one.learn(flowOf(1, model.FlowOpen))
	two.learn(flowOf(2, model.FlowOpen))
	first, stranger := start(t, d, one, 1), start(t, d, two, 2)
	d.write(member(2), strings.Repeat("0", 64))
	first.joinGroup(1, 2, port)
	stranger.joinGroup(2, 2, port)
	eventually(t, "the stranger is refused", func() bool { return first.Strangers() > 0 })
	eventually(t, "its certificate is said to be a stranger's", func() bool {
		return strings.Contains(first.Status()[0].Problem, errStranger.Error())
	})
	if one.knows(flowOf(2, model.FlowOpen)) || two.knows(flowOf(1, model.FlowOpen)) {
		t.Error("a stranger gets flows, or is heard")
	}
	d.write(member(2), stranger.Fingerprint())
	eventually(t, "one that has written its fingerprint is served and heard", func() bool {
		return one.knows(flowOf(2, model.FlowOpen)) && two.knows(flowOf(1, model.FlowOpen))
	})
}

// TestGarbage: what no director says ends the connection, and is counted.
func TestGarbage(t *testing.T) {
	good := appendFlow(frame(frameFlows), new(flowOf(1, model.FlowOpen)), classed)
	for name, garbage := range map[string][]byte{
		"too long":      {0xff, 0xff, 0xff, 0xff},
		"empty":         {0, 0, 0, 0},
		"unknown kind":  {0, 0, 0, 1, 77},
		"not so long":   {0, 0, 0, 2, byte(frameAll), 0},
		"cut short":     finish(good[:len(good)-1]),
		"odd protocol":  finish(append(frame(frameFlows), append([]byte{1 << stateShift, 99}, good[7:]...)...)),
		"unknown flags": finish(append(frame(frameFlows), append([]byte{0x80 | 1<<stateShift}, good[6:]...)...)),
	} {
		t.Run(name, func(t *testing.T) {
			d, port := newDirectory(), freePort(t)
			m := newMemory()
			subscriber, publisher := start(t, d, m, 1), start(t, d, newMemory(), 2)
			listener, err := net.Listen("tcp", netip.AddrPortFrom(member(2), port).String())
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			subscriber.joinGroup(1, 2, port)
			for range 2 { // it dials again
				raw, err := listener.Accept()
				if err != nil {
					t.Fatal(err)
				}
				conn := tls.Server(raw, publisher.secure(func(shown string) bool { return shown == subscriber.Fingerprint() }))
				if _, err := conn.Write(append(finish(appendFlow(frame(frameFlows), new(flowOf(1, model.FlowOpen)), classed)), garbage...)); err != nil {
					t.Fatal(err)
				}
				conn.SetReadDeadline(time.Now().Add(20 * time.Second))
				if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
					t.Errorf("the subscriber says %d bytes", n)
				} else if network, ok := err.(net.Error); ok && network.Timeout() {
					t.Error("the subscriber does not end the connection")
				}
				raw.Close()
			}
			eventually(t, "it is counted", func() bool { return subscriber.Status()[0].Garbage >= 2 })
			if !m.knows(flowOf(1, model.FlowOpen)) {
				t.Error("what came before is lost")
			}
		})
	}
}

// TestOlderVersion: one that knows no classes gets what it understands.
func TestOlderVersion(t *testing.T) {
	d, port := newDirectory(), freePort(t)
	m := newMemory()
	fresh := flowOf(7, model.FlowOpen)
	fresh.Class = model.FreshFlow
	m.learn(flowOf(1, model.FlowOpen), fresh)
	s, other := start(t, d, m, 1), start(t, d, newMemory(), 2)
	s.joinGroup(1, 2, port)
	before := other.secure(func(shown string) bool { return shown == s.Fingerprint() })
	before.NextProtos = []string{"weir-flows/1"}
	var conn *tls.Conn
	eventually(t, "somebody listens", func() bool {
		raw, err := dial(2, 1, port)
		if err == nil {
			conn = tls.Client(raw, before)
			err = conn.Handshake()
		}
		return err == nil
	})
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	var shared []model.RememberedFlow
	var buffer []byte
	for {
		kind, content, err := readFrame(conn, &buffer)
		if err != nil {
			t.Fatal(err)
		}
		if kind == frameAll {
			break
		}
		flows, err := readFlows(content, unclassed)
		if err != nil {
			t.Fatalf("it gets what it does not understand: %v", err)
		}
		shared = append(shared, flows...)
	}
	if len(shared) != 1 || shared[0] != as(flowOf(1, model.FlowOpen), unclassed) {
		t.Errorf("it gets %+v", shared)
	}
}

// TestVersions: directors of another format are neither served nor heard.
func TestVersions(t *testing.T) {
	d, port := newDirectory(), freePort(t)
	m := newMemory()
	m.learn(flowOf(1, model.FlowOpen))
	s, other := start(t, d, m, 1), start(t, d, newMemory(), 2)
	s.joinGroup(1, 2, port)
	for _, protocols := range [][]string{{"weir-flows/4"}, nil} {
		before := s.Strangers()
		later := other.secure(func(string) bool { return true })
		later.NextProtos, later.VerifyConnection = protocols, nil
		var conn *tls.Conn
		eventually(t, "somebody listens", func() bool {
			raw, err := dial(2, 1, port)
			if err == nil {
				conn = tls.Client(raw, later)
			}
			return err == nil
		})
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		if n, err := io.ReadFull(conn, make([]byte, 5)); err == nil || n > 0 {
			t.Errorf("one that speaks %q got %d bytes", protocols, n)
		}
		conn.Close()
		eventually(t, "it is refused", func() bool { return s.Strangers() > before })
	}
	listener, err := tls.Listen("tcp", netip.AddrPortFrom(member(2), port).String(), &tls.Config{
		Certificates: []tls.Certificate{other.certificate}, NextProtos: []string{"weir-flows/4"}, ClientAuth: tls.RequestClientCert})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, "x")
			conn.Close()
		}
	}()
	eventually(t, "the problem is named", func() bool { return strings.Contains(s.Status()[0].Problem, "protocol") })
}

// dial dials one member from the address of another number.
func dial(from, to byte, port uint16) (net.Conn, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(member(from), 0))}
	return d.Dial("tcp", netip.AddrPortFrom(member(to), port).String())
}

// TestOtherAddresses: a process that does not dial from a director's address gets no answer.
func TestOtherAddresses(t *testing.T) {
	d, port := newDirectory(), freePort(t)
	s := start(t, d, newMemory(), 1)
	s.joinGroup(1, 2, port)
	var conn net.Conn
	eventually(t, "somebody listens", func() (there bool) {
		var err error
		conn, err = dial(9, 1, port)
		return err == nil
	})
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("a stranger gets %d bytes, %v", n, err)
	} else if network, is := err.(net.Error); is && network.Timeout() {
		t.Error("a stranger is kept")
	}
	if s.Strangers() == 0 {
		t.Error("it is not counted")
	}
}

// TestSilentConnections: the connections that one member's host holds in silence keep no
// director out, not even the one on that host.
func TestSilentConnections(t *testing.T) {
	const host = 77 // other tests listen at no port of its address, and here many are used up
	d, port := newDirectory(), freePort(t)
	m, heard := newMemory(), newMemory()
	m.learn(flowOf(1, model.FlowOpen))
	s, other := start(t, d, m, 1), start(t, d, heard, 3)
	s.Set([]netip.Addr{member(1)}, []netip.Addr{member(3), member(host)}, port)
	silent := func() (conn net.Conn) {
		eventually(t, "somebody listens", func() (there bool) {
			var err error
			conn, err = dial(host, 1, port)
			return err == nil
		})
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	const all = 200
	first := silent()
	for range all - 1 {
		silent()
	}
	other.Set([]netip.Addr{member(3)}, []netip.Addr{member(1)}, port)
	own := start(t, d, newMemory(), host)
	raw, err := dial(host, 1, port)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	conn := tls.Client(raw, own.secure(func(shown string) bool { return shown == s.Fingerprint() }))
	if err := conn.Handshake(); err != nil {
		t.Fatalf("the director of that host is kept out: %v", err)
	}
	eventually(t, "flows are shared with both directors", func() bool {
		return !s.Status()[1].Listens.IsZero() && heard.knows(flowOf(1, model.FlowOpen))
	})
	first.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest silent connection still has a place: %v", err)
	}
	eventually(t, "those that are closed are counted as strangers'", func() bool { return s.Strangers() >= all-handshakesMost })
}

// TestSlowDirector: one that does not take what is shared gets everything again when it
// does, and nobody waits for it.
func TestSlowDirector(t *testing.T) {
	d, port := newDirectory(), freePort(t)
	m, quick := newMemory(), newMemory()
	s, slow, third := start(t, d, m, 1), start(t, d, newMemory(), 2), start(t, d, quick, 3)
	s.joinGroup(1, 3, port)
	third.joinGroup(3, 3, port)
	eventually(t, "the third director gets flows", func() bool { return !s.Status()[1].Listens.IsZero() })
	raw, err := dial(2, 1, port)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	conn := tls.Client(raw, slow.secure(func(shown string) bool { return shown == s.Fingerprint() }))
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the slow director gets flows", func() bool { return !s.Status()[0].Listens.IsZero() })
	for round := 0; s.Status()[0].Slow == 0; round++ {
		if round > 100 {
			t.Fatal("nothing is too much for a director that does not read")
		}
		var flows []model.RememberedFlow
		for i := range uint16(10000) {
			flows = append(flows, flowOf(1+i, model.RememberedState(1+round%2)))
		}
		m.learn(flows...)
	}
	m.learn(flowOf(60000, model.FlowOpen))
	eventually(t, "the third director gets them all the same", func() bool { return quick.knows(flowOf(60000, model.FlowOpen)) })
	var buffer []byte
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	for shared := false; !shared; {
		kind, content, err := readFrame(conn, &buffer)
		if err != nil {
			t.Fatal(err)
		}
		if kind != frameFlows {
			continue
		}
		flows, err := readFlows(content, classed)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range flows {
			shared = shared || f == flowOf(60000, model.FlowOpen)
		}
	}
	if s.Status()[0].Everything < 2 {
		t.Errorf("the slow director got everything %d times", s.Status()[0].Everything)
	}
}

// A start dials a director often while it waits for it, and the pauses grow from there when it no
// longer waits.
func TestPausesGrowFromThoseOfAStart(t *testing.T) {
	p, backoff := newPeer(member(2)), retry.Backoff{First: firstPause}
	pauses := func(n int) (last time.Duration) {
		for range n {
			last = p.nextPause(&backoff)
		}
		return last
	}
	if got := pauses(20); got != soonPause {
		t.Errorf("a start pauses %v, want %v", got, soonPause)
	}
	p.answered()
	if got := pauses(1); got > 2*soonPause {
		t.Errorf("the first pause that no start waits for is %v, after %v", got, soonPause)
	}
	if got := pauses(20); got != lastPause {
		t.Errorf("the pauses grow to %v, want %v", got, lastPause)
	}
}
