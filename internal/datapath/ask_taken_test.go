package datapath

import (
	"fmt"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// A connection that was taken goes directly to the backend that has it, both ways.
func testAskTaken(t *testing.T) {
	onBoth(t, func(t *testing.T, is4 bool) {
		a := newAsker(t, is4)
		a.refusesAfterAnswer(t)
		source := a.start(t, clientPort)
		e := a.echoTo(source)
		a.expect(t, "taken", a.taken("the echo", e, clientPort))
		a.expect(t, "", a.taken("the echo again", e, clientPort))
		a.expect(t, "", a.taken("the option first", func() askEcho { e := e; e.before = nil; return e }(), clientPort))
		again := a.syn(clientPort, linuxSYN)
		a.expect(t, "", a.goes("the SYN again", clientPort, 1, podPort, again, again))
		data := a.data(100)
		pod := end{a.backends[1].address, podPort}
		back := []packet.Header{ip(pod.address, source.address), l4(model.TCP, podPort, source.port), packet.Zeros(100)}
		a.expect(t, "", a.goes("data", clientPort, 1, podPort, data, data),
			a.goes("as large as fits", clientPort, 1, podPort, a.sized(1500), a.sized(1500)),
			a.tooBig("does not fit", nil, a.sized(1501)),
			a.sent("reply", abi.ReasonFORWARD_REPLY, build(back...), translated(back, a.vipEnd(), a.clientEnd(), 1)...),
			a.pass("from another port of it", back[0], l4(model.TCP, podPort+1, source.port)),
			a.pass("from who was asked", ip(a.backends[0].address, source.address), l4(model.TCP, backendPort, source.port)),
			a.pass("from another backend", ip(a.backends[2].address, source.address), l4(model.TCP, podPort, source.port)))
		a.takenErrors(t, source, pod)
		a.takenFragments(t, source, pod)
		old := a.syn(clientPort, linuxSYN)
		h := old[1].(packet.TCPHeader)
		h.Seq++
		old[1] = h
		a.expect(t, "", a.goes("a SYN of anybody in the open connection", clientPort, 1, podPort, old, old))
	})
}

func (a *asker) takenErrors(t *testing.T, source, pod end) {
	t.Helper()
	for _, e := range icmpErrors(a.vip.Is4()) {
		in := build(a.router(), e.header, packet.Quote(1000, a.reply(servicePort)...))
		original := translated(a.reply(servicePort), pod, source, 0)
		out := packet.Build(a.left(1), withTTL(ip(source.address, pod.address), 56), e.header, packet.Quote(1000, original...))
		about := a.data(30)
		received, told := translated(about, source, pod, 1), translated(about, end{}, end{}, 1)
		a.expect(t, "",
			row{name: e.name + " to the backend", in: in}.forwarded(abi.ReasonFORWARD_ICMP_ERROR, a.testService, 1, out),
			a.sent(e.name+" to the client", abi.ReasonFORWARD_ICMP_ERROR, build(ip(numbered(a.vip.Is4(), 9, 1), source.address), e.header, packet.Quote(1000, received...)),
				withTTL(ip(numbered(a.vip.Is4(), 9, 1), a.client), 56), e.header, packet.Quote(1000, told...)))
	}
}

func (a *asker) takenFragments(t *testing.T, source, pod end) {
	t.Helper()
	in, out := pieces(1, a.data(600)...), pieces(1, translated(a.data(600), source, pod, 1)...)
	answer := []packet.Header{ip(pod.address, source.address), l4(model.TCP, pod.port, source.port), packet.Zeros(600)}
	back, client := pieces(2, answer...), pieces(2, translated(answer, a.vipEnd(), a.clientEnd(), 1)...)
	for i := range in {
		reason, reply := abi.ReasonFORWARD_FRAGMENT, abi.ReasonFORWARD_FRAGMENT
		if i == 0 {
			reason, reply = abi.ReasonFORWARD_NAT, abi.ReasonFORWARD_REPLY
		}
		a.expect(t, "",
			row{name: fmt.Sprintf("fragment %d", i), in: in[i]}.forwarded(reason, a.testService, 1, relinked(out[i], a.left(1))),
			row{name: fmt.Sprintf("fragment %d of a reply", i), in: back[i], reason: reply, action: xdpRedirect, out: relinked(client[i], routed(a.client))})
	}
}

// A port that is used again: the connection that begins then goes to the backend that the ring says,
// not to the host that has taken the one before, and asks for itself.
func testAskAgain(t *testing.T) {
	ends := map[string][]func(a *asker, source end) []packet.Header{
		"closed": {
			func(a *asker, source end) []packet.Header { // only the backend that has the connection has data
				return []packet.Header{ip(a.backends[1].address, source.address), packet.TCPHeader{Src: podPort, Dst: source.port, Seq: 78, Ack: askISN + 1, Flags: packet.ACK}, packet.Text("data")}
			},
			func(a *asker, _ end) []packet.Header {
				return []packet.Header{ip(a.client, a.vip), packet.TCPHeader{Src: clientPort, Dst: servicePort, Seq: askISN + 1, Ack: 82, Flags: packet.FIN | packet.ACK}}
			},
			func(a *asker, source end) []packet.Header {
				return []packet.Header{ip(a.backends[1].address, source.address), packet.TCPHeader{Src: podPort, Dst: source.port, Seq: 82, Ack: 0, Flags: packet.FIN | packet.ACK}}
			},
		},
		"reset": {func(a *asker, source end) []packet.Header {
			return []packet.Header{ip(a.backends[1].address, source.address), packet.TCPHeader{Src: podPort, Dst: source.port, Flags: packet.RST}}
		}},
	}
	for name, story := range ends {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, is4 bool) {
				a := newAsker(t, is4)
				source := a.start(t, clientPort)
				a.expect(t, "taken", a.taken("the echo", a.echoTo(source), clientPort))
				data := a.data(3)
				a.expect(t, "", a.goes("data", clientPort, 1, podPort, data, data))
				for _, step := range story {
					a.run(t, build(step(a, source)...), 0)
				}
				next := func(options []byte) []packet.Header {
					list := a.syn(clientPort, options)
					h := list[1].(packet.TCPHeader)
					h.Seq += 100000
					list[1] = h
					return list
				}
				a.expect(t, "asked", a.goes("another connection", clientPort, 0, backendPort, next(linuxSYN), next(asking(linuxSYN...))))
				e := a.echoTo(source)
				a.expect(t, "not_asked_for", a.refused("the first one's number", e))
				e.ack += 100000
				a.expect(t, "taken", a.taken("its echo", e, clientPort))
				a.expect(t, "", a.goes("its data", clientPort, 1, podPort, data, data))
			})
		})
	}
}

// Backends of other kinds, and those that change meanwhile.
func testAskBackends(t *testing.T) {
	onBoth(t, func(t *testing.T, is4 bool) {
		t.Run("of another VLAN", func(t *testing.T) {
			a := newAsker(t, is4)
			e := a.echoTo(a.start(t, clientPort))
			e.from.address, e.segment = a.backends[2].address, 7
			// A reply that came with a tag is the kernel's to route.
			out := translated(withOptions(e.headers(), e.nops()), a.vipEnd(), a.clientEnd(), 0)
			a.expect(t, "taken", row{name: "the echo", in: e.frame(), reason: abi.ReasonPASS_REPLY_UNROUTED, action: xdpPass,
				out: packet.Build(append([]packet.Header{arrived, packet.VLANTag{ID: 7}}, out...)...)})
			data := a.data(3)
			a.expect(t, "", a.goes("data", clientPort, 2, podPort, data, data))
		})
		t.Run("taken away", func(t *testing.T) {
			a := newAsker(t, is4)
			a.expect(t, "taken", a.taken("the echo", a.echoTo(a.start(t, clientPort)), clientPort))
			a.setBackend(t, a.testDirector, 0, abi.BackendStateBACKEND_DOWN)
			data := a.data(3)
			a.expect(t, "", a.goes("who was asked is down", clientPort, 1, podPort, data, data))
			entry := a.abiBackend(1)
			entry.Epoch++
			a.put(t, "backends", a.first+1, entry)
			a.expect(t, "", row{name: "who has the connection is gone", in: build(data...)}.dropped(abi.ReasonDROP_SNAT_UNKNOWN, a.testService))
		})
		t.Run("this host", func(t *testing.T) {
			a := newAsker(t, is4, func(s *testService) { s.ring.Slots = []model.Slot{{Owner: 3, Next: model.NoBackend}} })
			before := a.events(t)
			_, out := a.run(t, build(a.syn(clientPort, linuxSYN)...), 0)
			want := translated(a.syn(clientPort, linuxSYN), end{}, end{a.backends[3].address, backendPort}, 0)
			packet.Equal(t, out, build(want...))
			if got := a.events(t); fmt.Sprint(got) != fmt.Sprint(before) {
				t.Errorf("events %v, want %v", got, before)
			}
		})
		t.Run("of a service that does not ask", func(t *testing.T) {
			a := newAsker(t, is4, func(s *testService) {
				for i := range s.backends {
					s.backends[i].asks = false
				}
			})
			in := a.syn(clientPort, linuxSYN)
			a.expect(t, "", a.goes("first SYN", clientPort, 0, backendPort, in, in))
			_, f := a.flowOf(t, a.testDirector, clientPort)
			e := a.echoTo(f.source)
			a.expect(t, "not_asked_for", a.refused("an echo", e))
			e.from = a.backendEnd()
			a.expect(t, "", a.sent("an option that is no echo", abi.ReasonFORWARD_REPLY, e.frame(), translated(e.headers(), a.vipEnd(), a.clientEnd(), 1)...))
		})
	})
}
