package datapath

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	optiontwin "weir.io/weir/lab/twin"
)

// onBoth runs a test with each family.
func onBoth(t *testing.T, run func(t *testing.T, is4 bool)) {
	t.Helper()
	for _, is4 := range []bool{true, false} {
		t.Run(map[bool]string{true: "ipv4", false: "ipv6"}[is4], func(t *testing.T) { run(t, is4) })
	}
}

// Which SYNs ask, and what leaves.
func testAsk(t *testing.T) {
	onBoth(t, func(t *testing.T, is4 bool) {
		a := newAsker(t, is4)
		port := uint16(clientPort)
		first := func(event, name string, in, out []packet.Header) {
			t.Helper()
			port++
			for _, list := range [][]packet.Header{in, out} {
				h := list[1].(packet.TCPHeader)
				h.Src = port
				list[1] = h
			}
			a.expect(t, event, a.goes(name, port, 0, backendPort, in, out))
		}
		does := func(name string, options []byte) {
			t.Helper()
			first("asked", name, a.syn(0, options), a.syn(0, asking(options...)))
		}
		does("no options", nil)
		does("Linux's", linuxSYN)
		does("the last room that there is", append(slices.Clone(linuxSYN), 1, 1, 1, 1, 1, 1, 1, 1))
		does("without MSS, the last room in the answer", bytes.Repeat([]byte{1}, 24))
		stays := func(event, name string, options []byte, more ...packet.Header) {
			t.Helper()
			first(event, name, append(a.syn(0, options), more...), append(a.syn(0, options), more...))
		}
		stays("no_room", "no room", append(slices.Clone(linuxSYN), bytes.Repeat([]byte{1}, 12)...))
		stays("no_room", "no room in the answer", bytes.Repeat([]byte{1}, 28))
		stays("no_room", "behind the end", []byte{2, 4, 5, 0xb4, 0, 0, 0, 0})
		stays("has_data", "data", linuxSYN, packet.Text("early"))
		stays("forbidden", "Fast Open", []byte{34, 2, 1, 1})
		stays("forbidden", "Fast Open, as it began", []byte{254, 4, 0xf9, 0x89})
		stays("forbidden", "MPTCP", []byte{30, 4, 0, 1})
		stays("forbidden", "MD5", append([]byte{1, 1, 19, 18}, make([]byte, 16)...))
		stays("forbidden", "AO", []byte{29, 4, 1, 1})
		stays("malformed", "an option of no byte", []byte{5, 0, 1, 1})
		stays("malformed", "the option twice", asking(asking()...))
		stays("malformed", "filled in already", optiontwin.AppendRedirect(nil, netip.AddrPortFrom(a.vip, servicePort)))
		stays("asks_already", "the client's host asks", asking(linuxSYN...))
		a.headerRows(t, does, first)
		a.frameRows(t)
	})
}

// headerRows have more in front of TCP.
func (a *asker) headerRows(t *testing.T, does func(string, []byte), first func(event, name string, in, out []packet.Header)) {
	t.Helper()
	in, out := a.syn(0, linuxSYN), a.syn(0, asking(linuxSYN...))
	for _, list := range [][]packet.Header{in, out} {
		if four, is4 := list[0].(packet.IPv4Header); is4 {
			four.Options = []byte{1, 1, 1, 0}
			list[0] = four
		}
	}
	first("asked", "IP options", in, out)
	last := a.syn(clientPort, linuxSYN)
	last[0] = withTTL(last[0], 1)
	a.expect(t, "", row{name: "TTL 1", in: build(last...)}.passed(abi.ReasonPASS_TTL_EXPIRED))
	does("after all that", linuxSYN)
}

// frameRows are about what is behind the packet.
func (a *asker) frameRows(t *testing.T) {
	t.Helper()
	padded := func(event, name string, port uint16, padding int, out []packet.Header, left int) {
		t.Helper()
		in := a.syn(port, linuxSYN)
		r := a.goes(name, port, 0, backendPort, in, out)
		r.in = append(r.in, make([]byte, padding)...)
		length := uint64(len(build(in...)) - 14)
		r.bytes = &length
		late := r.late
		r.late = func(t *testing.T, frame []byte) []byte {
			return append(late(t, frame), make([]byte, left)...)
		}
		a.expect(t, event, r)
	}
	asked := func(port uint16) []packet.Header { return a.syn(port, asking(linuxSYN...)) }
	padded("asked", "less padding than the option is long", 100, 6, asked(100), 0)
	padded("asked", "as much", 101, 12, asked(101), 0)
	padded("asked", "more", 102, 20, asked(102), 8)
	padded("add_failed", "a frame of several buffers", 103, 5000, a.syn(103, linuxSYN), 5000)
	// A SYN in pieces is not asked with, and neither is what comes after it.
	for _, frame := range pieces(4711, append(a.syn(104, linuxSYN), packet.Zeros(600))...) {
		before := a.events(t)
		a.run(t, frame, 0)
		if got := a.events(t); fmt.Sprint(got) != fmt.Sprint(before) {
			t.Errorf("a fragment of a SYN: events %v, want %v", got, before)
		}
	}
}

// SYNs that are sent again, and the backends that may answer.
func testAskAnswers(t *testing.T) {
	onBoth(t, func(t *testing.T, is4 bool) {
		a := newAsker(t, is4)
		source := a.start(t, clientPort)
		unchanged := a.asks(t, clientPort)
		wrong := func(event, name string, change func(*askEcho)) {
			t.Helper()
			e := a.echoTo(source)
			change(&e)
			a.expect(t, event, a.refused(name, e))
			if got := a.asks(t, clientPort); got != unchanged {
				t.Errorf("%s: the flow has become %+v", name, got)
			}
		}
		vip := a.backends[0].address
		wrong("not_asked_for", "another SYN's", func(e *askEcho) { e.ack++ })
		wrong("not_asked_for", "the SYN's own number", func(e *askEcho) { e.ack-- })
		wrong("misnamed", "another address is named", func(e *askEcho) { e.names = netip.AddrPortFrom(vip.Next(), backendPort) })
		wrong("misnamed", "the service's VIP is named", func(e *askEcho) { e.names = netip.AddrPortFrom(a.vip, servicePort) })
		wrong("misnamed", "another port is named", func(e *askEcho) { e.names = netip.AddrPortFrom(vip, backendPort+1) })
		wrong("foreign", "from anywhere", func(e *askEcho) { e.from.address = backendAddress(is4, 77) })
		wrong("foreign", "from another service's backend", func(e *askEcho) { e.from.address = backendAddress(is4, 9) })
		wrong("foreign", "from this host", func(e *askEcho) { e.from.address = a.backends[3].address })
		wrong("foreign", "from another network", func(e *askEcho) { e.segment = 9 })
		wrong("not_asked_for", "to another port", func(e *askEcho) { e.to.port ^= 1 })
		wrong("", "to a port that is none of the director's", func(e *askEcho) { e.to.port = snatPorts.Last + 1 })
		wrong("", "to another address", func(e *askEcho) { e.to.address = backendAddress(is4, 99) })
		wrong("", "it names nobody", func(e *askEcho) { e.names = netip.AddrPort{} })
		wrong("", "with an option that forbids", func(e *askEcho) { e.before = []byte{34, 2, 1, 1} })
		wrong("", "no SYN-ACK", func(e *askEcho) { e.flags = packet.ACK })
		wrong("", "a SYN", func(e *askEcho) { e.flags = packet.SYN })
		wrong("", "an RST", func(e *askEcho) { e.flags = packet.RST | packet.ACK })
		a.setBackend(t, a.testDirector, 1, abi.BackendStateBACKEND_DOWN)
		wrong("foreign", "of a backend that is down", func(*askEcho) {})
		a.setBackend(t, a.testDirector, 1, abi.BackendStateBACKEND_ACTIVE)

		again := a.syn(clientPort, linuxSYN)
		a.expect(t, "again", a.goes("sent again", clientPort, 0, backendPort, again, again))
		a.expect(t, "", a.goes("and again", clientPort, 0, backendPort, again, again))
		a.expect(t, "not_asked_for", a.refused("too late", a.echoTo(source)))
		relayed := a.echoTo(source)
		relayed.from, relayed.names = end{vip, backendPort}, netip.AddrPort{}
		a.expect(t, "", a.sent("answer of who was asked", abi.ReasonFORWARD_REPLY, relayed.frame(),
			translated(relayed.headers(), a.vipEnd(), a.clientEnd(), 1)...))
	})
}

// A version that knew no numbers reads the state of what was asked for where the number of a
// SYN-ACK is kept: of a connection that is proved it finds nothing there that leads it away.
func testAskDowngrade(t *testing.T) {
	onBoth(t, func(t *testing.T, is4 bool) {
		a := newAsker(t, is4)
		own := a.echoTo(a.start(t, clientPort))
		own.from, own.names = end{a.backends[0].address, backendPort}, netip.AddrPort{}
		headers := own.headers()
		number := headers[1].(packet.TCPHeader)
		number.Seq = uint32(abi.AskedStateASKED_TAKEN) << 16
		headers[1] = number
		a.run(t, build(headers...), 0)
		a.run(t, build(ip(a.client, a.vip), packet.TCPHeader{Src: clientPort, Dst: servicePort, Seq: askISN + 1, Ack: number.Seq + 1, Flags: packet.ACK}), 0)
		e := a.asks(t, clientPort)
		if abi.SnatState(e.State) != abi.SnatStateSNAT_ESTABLISHED || abi.AskedState(e.Asked.State) != abi.AskedStateASKED_PLAIN {
			t.Errorf("the flow has become %+v", e)
		}
	})
}

// The backend that was asked answers by itself: no other backend may answer any more.
func (a *asker) refusesAfterAnswer(t *testing.T) {
	t.Helper()
	source := a.start(t, clientPort+1)
	own := a.echoTo(source)
	own.from, own.names = end{a.backends[0].address, backendPort}, netip.AddrPort{}
	client := end{a.client, clientPort + 1}
	a.expect(t, "not_taken", a.sent("answers himself", abi.ReasonFORWARD_REPLY, own.frame(), translated(own.headers(), a.vipEnd(), client, 1)...))
	a.expect(t, "", a.sent("and again", abi.ReasonFORWARD_REPLY, own.frame(), translated(own.headers(), a.vipEnd(), client, 1)...))
	a.expect(t, "not_asked_for", a.refused("too late", a.echoTo(source)))
	named := a.echoTo(source)
	named.from = own.from
	a.expect(t, "", a.taken("answers himself, with the option", named, clientPort+1))
}

// The program and the twin agree about any options there can be.
func testAskTwin(t *testing.T) {
	a := newAsker(t, true)
	a.putSNAT(t, snatSources, model.PortRange{First: 10000, Last: 10000 + 8191})
	random := rand.New(rand.NewPCG(6, 4))
	asked := 0
	for i := range 4000 {
		options := randomOptions(random)
		read := optiontwin.ReadRedirect(options)
		before := a.events(t)
		in := a.syn(uint16(1024+i), options)
		_, out := a.run(t, build(in...), 0)
		now, want := a.events(t), slices.Clone(options)
		switch {
		case read.Room:
			asked++
			want = asking(options...)
			if now["asked"] != before["asked"]+1 {
				t.Fatalf("%d: %x: events %v before, %v now, want one more asked", i, options, before, now)
			}
		case now["asked"] != before["asked"]:
			t.Fatalf("%d: %x: a SYN asks that has no room for it", i, options)
		case read.Asks() != (now["asks_already"] != before["asks_already"]):
			t.Fatalf("%d: %x: events %v before, %v now, asks already: %v", i, options, before, now, read.Asks())
		}
		if err := packet.VerifyChecksums(out); err != nil {
			t.Fatalf("%d: %x: %v", i, options, err)
		}
		if got := out[14+20+20:]; !bytes.Equal(got, want) {
			t.Fatalf("%d: options %x left as %x, want %x", i, options, got, want)
		}
	}
	if asked < 400 || asked > 3600 {
		t.Errorf("%d of 4000 ask: the options are not random enough", asked)
	}
}

// Answers of which some parts are wrong: the only one that is taken has everything right.
func testAskForged(t *testing.T) {
	onBoth(t, func(t *testing.T, is4 bool) {
		a := newAsker(t, is4)
		source := a.start(t, clientPort)
		unchanged := a.asks(t, clientPort)
		random := rand.New(rand.NewPCG(7, 5))
		for i := range 3000 {
			e := a.echoTo(source)
			wrong := random.IntN(31) + 1
			if wrong&1 != 0 {
				e.ack = random.Uint32()
			}
			if wrong&2 != 0 {
				e.names = netip.AddrPortFrom(backendAddress(is4, 1+random.IntN(200)), backendPort)
			}
			if wrong&4 != 0 {
				e.names = netip.AddrPortFrom(e.names.Addr(), uint16(random.IntN(backendPort)))
			}
			if wrong&8 != 0 {
				e.from.address = backendAddress(is4, 3+random.IntN(200))
			}
			if wrong&16 != 0 {
				e.to.port = source.port ^ uint16(1+random.IntN(63))
			}
			action, out := a.run(t, e.frame(), 0)
			if got := a.asks(t, clientPort); action != xdpPass || !bytes.Equal(out, e.frame()) || got != unchanged {
				t.Fatalf("%d: %+v: verdict %d, the flow is %+v", i, e, action, got)
			}
		}
		a.expect(t, "taken", a.taken("the right one", a.echoTo(source), clientPort))
	})
}

func testEveryAskEvent(t *testing.T) {
	for _, name := range askEvents(t) {
		if !askEventsHit[strings.TrimPrefix(name, "ask_")] {
			t.Errorf("no row is about %s", name)
		}
	}
}
