package datapath

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	optiontwin "weir.io/weir/lab/twin"
)

// linuxSYN is what Linux puts into a SYN: MSS, SACK, timestamps, window scale.
var linuxSYN = []byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7}

// redirecting adds the services of scenarios once more, with backends that connections
// are handed over to. The mode is what others fall back to.
func (w *testWorld) redirecting() (list []scenario) {
	list = w.scenarios(notFullNAT)
	for _, s := range list {
		for i := range s.backends {
			s.backends[i].redirect = s.protocol == model.TCP && s.backends[i].address.Is4() == s.vip.Is4()
		}
	}
	return slices.DeleteFunc(list, func(s scenario) bool { return !s.backends[0].redirect })
}

// syn is a SYN of a client, with these options.
func syn(options []byte) packet.TCPHeader {
	return packet.TCPHeader{Src: clientPort, Dst: servicePort, Seq: 0xfffffffe, Flags: packet.SYN | packet.ECE | packet.CWR, Window: 64240, Options: options}
}

func asking(before ...byte) []byte {
	return optiontwin.AppendRedirect(slices.Clone(before), netip.AddrPort{})
}

// redirected is the row of a SYN that is the backend's from here on.
func (s scenario) redirected(name string, to packet.Header, between []packet.Header, h packet.TCPHeader) row {
	b := s.backends[0]
	headers := slices.Concat([]packet.Header{to}, between, []packet.Header{h})
	filled := h
	filled.Options = slices.Clone(h.Options)
	at := optiontwin.ReadRedirect(h.Options).At
	copy(filled.Options[at:], optiontwin.AppendRedirect(nil, netip.AddrPortFrom(s.vip, servicePort))[:10])
	link := []packet.Header{s.left(0)}
	if b.vlan != 0 {
		link = append(link, packet.VLANTag{ID: b.vlan})
	}
	out := slices.Concat(link, translated(slices.Concat([]packet.Header{to}, between, []packet.Header{filled}), end{}, end{b.address, b.port}, 1))
	return row{name: name, in: build(headers...)}.forwarded(abi.ReasonFORWARD_REDIRECT, s.testService, 0, packet.Build(out...))
}

func testRedirect(t *testing.T) {
	w := &testWorld{}
	scenarios := w.redirecting()
	scenarios[0].backends[0].vlan = 77
	scenarios[1].backends[0].ifindex = otherEgress
	d := loadTestDirector(t, w)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { d.check(t, slices.Concat(s.redirectRows(), s.fallbackRows())) })
	}
}

// A connection that is handed over has no flow in full NAT, and takes no port from
// those that have one.
func testRedirectFullNAT(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		w, s, _ := snatWorld(is4)
		for i := range s.backends {
			s.backends[i].redirect = true
		}
		d := loadTestDirector(t, w)
		d.check(t, s.redirectRows())
		if n := len(d.flows(t)); n != 0 {
			t.Errorf("%s: %d connections that were handed over have flows", s.name, n)
		}
		d.run(t, build(ip(s.client, s.vip), syn(linuxSYN)), 0)
		if n := len(d.flows(t)); n != 1 {
			t.Errorf("%s: a connection that does not ask has %d flows, want one", s.name, n)
		}
	}
}

// The client's SYN comes again, and the policy's turn is now a backend that takes connections over: the
// connection stays where full NAT has begun it.
func testRedirectFullNATAgain(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		w, s, _ := snatWorld(is4)
		s.testService.policy, s.testService.redirected = model.RoundRobin, true
		s.backends[0].mode, s.backends[0].snat, s.backends[0].redirect = model.GUE, false, true
		s.testService.ring = model.Ring{Slots: []model.Slot{{Owner: 1, Next: 0}}, Turns: []uint32{0, 1}}
		d := loadTestDirector(t, w)
		frame := build(ip(s.client, s.vip), syn(asking(linuxSYN...)))
		if firstTurnOf(d, 2) == 0 {
			d.run(t, build(ip(s.client, s.vip), packet.TCPHeader{Src: clientPort + 1, Dst: servicePort, Flags: packet.SYN, Options: asking()}), 0)
		}
		for _, try := range []string{"first", "second"} {
			action, out := d.run(t, frame, 0)
			if got := s.receiver(t, action, out); got != 1 {
				t.Errorf("%s: the %s SYN went to backend %d, want 1", s.name, try, got)
			}
		}
		if n := len(d.flows(t)); n != 1 {
			t.Errorf("%s: %d flows, want one", s.name, n)
		}
	}
}

func (s scenario) redirectRows() []row {
	to := ip(s.client, s.vip)
	rows := []row{
		s.redirected("nothing but the option", to, nil, syn(asking())),
		s.redirected("after Linux's", to, nil, syn(asking(linuxSYN...))),
		s.redirected("no room left", to, nil, syn(asking(slices.Concat(linuxSYN, []byte{1, 1, 1, 1, 1, 1, 1, 1})...))),
		s.redirected("NOPs before it", to, nil, syn(slices.Concat([]byte{1, 1}, asking()[:10]))),
		s.redirected("TTL 2", withTTL(to, 2), nil, syn(asking())),
		row{name: "TTL 1", in: build(withTTL(to, 1), syn(asking()))}.passed(abi.ReasonPASS_TTL_EXPIRED),
	}
	if four, is4 := to.(packet.IPv4Header); is4 {
		four.Options = []byte{1, 1, 1, 0}
		return append(rows, s.redirected("IP options", four, nil, syn(asking(linuxSYN...))))
	}
	return append(rows, s.redirected("extension header", to,
		[]packet.Header{packet.ExtensionHeader{Kind: packet.DestOptions, Data: make([]byte, 30)}}, syn(asking(linuxSYN...))))
}

// fallbackRows are packets that go as if nobody redirected.
func (s scenario) fallbackRows() []row {
	to := ip(s.client, s.vip)
	with := func(flags uint8) packet.TCPHeader {
		h := syn(asking())
		h.Flags = flags
		return h
	}
	fall := func(name string, headers ...packet.Header) row {
		return s.forward(name, s.flow(), 0, append([]packet.Header{to}, headers...)...)
	}
	filled := optiontwin.AppendRedirect(nil, netip.AddrPortFrom(s.vip, servicePort))
	return []row{
		fall("no options", syn(nil)),
		fall("does not ask", syn(linuxSYN)),
		fall("filled in already", syn(filled)),
		fall("with data", syn(asking()), packet.Text("early")),
		fall("Fast Open", syn(asking(34, 2, 1, 1))),
		fall("MPTCP", syn(asking(30, 4, 0, 1))),
		fall("MD5", syn(asking(append([]byte{1, 1, 19, 18}, make([]byte, 16)...)...))),
		fall("AO", syn(asking(29, 4, 1, 1))),
		fall("at an odd place", syn(slices.Concat([]byte{1}, asking()[:10], []byte{1}))),
		fall("twice", syn(asking(asking()...))),
		fall("behind the end", syn(asking(0, 0, 0, 0))),
		fall("an option of no byte", syn(asking(5, 0, 1, 1))),
		fall("ACK", with(packet.ACK)),
		fall("SYN and ACK", with(packet.SYN|packet.ACK)),
		fall("SYN and FIN", with(packet.SYN|packet.FIN)),
		fall("RST", with(packet.RST)),
	}
}

// A SYN in fragments may have data, and a backend that is this host has a shorter way.
func testNotRedirected(t *testing.T) {
	w := &testWorld{}
	scenarios := w.redirecting()
	local := w.add(testService{vip: vipAddress(true, 900), protocol: model.TCP, port: singlePort(servicePort),
		backends: []testBackend{{mode: model.GUE, address: backendAddress(true, 900), local: true, redirect: true}}})
	dead := w.add(testService{vip: vipAddress(true, 901), protocol: model.TCP, port: singlePort(servicePort),
		backends: []testBackend{{mode: model.GUE, address: backendAddress(true, 901), state: abi.BackendStateBACKEND_DOWN, redirect: true}}})
	d := loadTestDirector(t, w)
	toLocal := build(ip(client4, local.vip), syn(asking()))
	d.check(t, []row{
		{name: "this host's", in: toLocal, reason: abi.ReasonPASS_LOCAL, action: xdpPass, backend: local.first},
		row{name: "nobody's", in: build(ip(client4, dead.vip), syn(asking()))}.dropped(abi.ReasonDROP_NO_BACKEND, dead),
	})
	for i, s := range scenarios {
		// The first one has the TCP header and no more, as a SYN without data would.
		headers := []packet.Header{ip(s.client, s.vip), syn(asking(2, 4, 5, 0xb4, 1, 1, 1, 1)), packet.Zeros(100)}
		if four, is4 := headers[0].(packet.IPv4Header); is4 {
			four.DF = false
			headers[0] = four
		}
		first := packet.Fragments(uint32(7000+i), 40, append([]packet.Header{arrived}, headers...)...)[0]
		before := d.read(t)
		d.run(t, first, 0)
		if got, want := d.read(t).since(before), reasonName(s.forward("", s.flow(), 0, s.data(0)...).reason); got[want].Packets != 1 {
			t.Errorf("%s: first fragment of a SYN: counted %s, want %s", s.name, got, want)
		}
	}
}

// The program and the twin agree about any options there can be.
func testRedirectTwin(t *testing.T) {
	w := &testWorld{}
	s := w.redirecting()[0]
	d := loadTestDirector(t, w)
	random := rand.New(rand.NewPCG(6, 3))
	asked := 0
	for i := range rounds(4000) {
		options := randomOptions(random)
		want, name := abi.ReasonFORWARD_L2DSR, fmt.Sprintf("%d: %x", i, options)
		if optiontwin.ReadRedirect(options).Asks() {
			want = abi.ReasonFORWARD_REDIRECT
			asked++
		}
		before := d.read(t)
		_, out := d.run(t, build(ip(s.client, s.vip), syn(options)), 0)
		got := d.read(t).since(before)
		if got[reasonName(want)].Packets != 1 {
			t.Fatalf("%s: counted %s, want %s", name, got, reasonName(want))
		}
		if err := packet.VerifyChecksums(out); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if asked < rounds(400) || asked > rounds(3600) {
		t.Errorf("%d of %d asked to be redirected: the options are not random enough", asked, rounds(4000))
	}
}

// randomOptions are options as they may be, some of them broken.
func randomOptions(random *rand.Rand) []byte {
	known := [][]byte{{1}, {1, 1}, {1}, {2, 4, 5, 0xb4}, {4, 2}, {3, 3, 7}, {8, 10, 1, 2, 3, 4, 5, 6, 7, 8}, {5, 10, 1, 2, 3, 4, 5, 6, 7, 8}, asking()[:10], asking(), asking()}
	rare := [][]byte{{0}, {34, 2}, {34, 6, 1, 2, 3, 4}, {30, 4, 0, 1}, {254, 4, 0xf9, 0x89}, {253, 4, 0xf9, 0x89}, {254, 3, 1}, {254, 2}, {5, 0}, {5, 1}, {5},
		{29, 4, 1, 1}, {253, 10, 0x57, 0x52, 0, 0, 0, 0, 0, 0}, {254, 9, 0x57, 0x52, 0, 0, 0, 0, 0}, {254, 10, 0x57, 0x52, 0, 0, 0, 0, 0, 1}, {254, 10, 0x57, 0x52, 9, 0, 0, 0, 0, 0}, {254, 10, 0x57}}
	var options []byte
	for range random.IntN(7) {
		from := known
		if random.IntN(12) == 0 {
			from = rare
		}
		options = append(options, from[random.IntN(len(from))]...)
	}
	if random.IntN(40) == 0 {
		for i := range options {
			options[i] = byte(random.Uint32())
		}
	}
	options = options[:min(len(options), 40)]
	for len(options)%4 != 0 {
		options = append(options, 1)
	}
	return options
}
