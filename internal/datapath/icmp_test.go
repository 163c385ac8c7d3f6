package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// Errors that routers and clients send about packets of a service's flows reach
// the flow's backend.
func testICMPErrors(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(notNAT)
	d := loadTestDirector(t, w)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { d.check(t, s.errorRows()) })
	}
}

// icmpError is an error's name and first 8 bytes.
type icmpError struct {
	name   string
	header packet.Header
}

func icmpErrors(is4 bool) []icmpError {
	if is4 {
		return []icmpError{
			{"fragmentation needed", packet.ICMPv4Header{Type: packet.Unreachable, Code: packet.FragmentationNeeded, Rest: 1400}},
			{"port unreachable", packet.ICMPv4Header{Type: packet.Unreachable, Code: packet.PortUnreachable}},
			{"time exceeded", packet.ICMPv4Header{Type: packet.TimeExceeded}},
			{"parameter problem", packet.ICMPv4Header{Type: packet.ParameterProblem, Rest: 20 << 24}},
		}
	}
	return []icmpError{
		{"packet too big", packet.ICMPv6Header{Type: packet.PacketTooBig, Rest: 1400}},
		{"port unreachable", packet.ICMPv6Header{Type: packet.Unreachable6, Code: packet.PortUnreachable6}},
		{"time exceeded", packet.ICMPv6Header{Type: packet.TimeExceeded6}},
		{"parameter problem", packet.ICMPv6Header{Type: packet.ParameterProblem6, Rest: 40}},
	}
}

// reply is a packet that the client was sent: what errors quote.
func (s scenario) reply(from uint16) []packet.Header {
	return []packet.Header{ip(s.vip, s.client), l4(s.protocol, from, clientPort), packet.Text("a reply with some data")}
}

// router is where errors come from.
func (s scenario) router() packet.Header { return ip(numbered(s.vip.Is4(), 9, 1), s.vip) }

func (s scenario) errorRows() (rows []row) {
	is4 := s.vip.Is4()
	for _, e := range icmpErrors(is4) {
		for _, quoted := range []int{8, 20, 1000} {
			r := s.forward(fmt.Sprintf("%s, %d bytes", e.name, quoted), s.flow(), 0,
				s.router(), e.header, packet.Quote(quoted, s.reply(servicePort)...))
			r.reason = abi.ReasonFORWARD_ICMP_ERROR
			rows = append(rows, r)
			if s.backends[0].mode == model.L2DSR {
				rows = append(rows, sentAlready(r.name+", flooded by a switch", r.out))
			}
		}
		rows = append(rows,
			s.pass(e.name+", unknown flow", s.router(), e.header, packet.Quote(8, s.reply(otherPort)...)),
			s.pass(e.name+", not from the VIP", ip(numbered(is4, 9, 1), vipAddress(is4, 0xfff)), e.header,
				packet.Quote(8, ip(vipAddress(is4, 0xfff), s.client), l4(s.protocol, servicePort, clientPort))),
			// Its sender never saw a packet of this flow: errors go to the source.
			s.pass(e.name+", sent elsewhere", ip(numbered(is4, 9, 1), vipAddress(is4, 0xfff)), e.header, packet.Quote(8, s.reply(servicePort)...)),
			s.pass(e.name+", quotes GRE", s.router(), e.header, packet.Quote(8, withProtocol(ip(s.vip, s.client), 47), packet.Zeros(8))),
			s.malformed(e.name+", quote cut", s.router(), e.header, packet.Quote(7, s.reply(servicePort)...)),
			s.malformed(e.name+", no quote", s.router(), e.header),
			padded(s.malformed(e.name+", quote cut, padded", s.router(), e.header, packet.Quote(3, s.reply(servicePort)...)),
				packet.Build(s.reply(servicePort)[1])))
	}
	return append(rows, s.quoteRows()...)
}

// quoteRows are errors about packets with options, and fragments.
func (s scenario) quoteRows() []row {
	e, from := icmpErrors(s.vip.Is4())[0], l4(s.protocol, servicePort, clientPort)
	row := func(name string, headers ...packet.Header) row {
		r := s.forward(name, s.flow(), 0, s.router(), e.header, packet.Bytes(packet.Build(headers...)))
		r.reason = abi.ReasonFORWARD_ICMP_ERROR
		return r
	}
	if s.vip.Is4() {
		h := ip(s.vip, s.client).(packet.IPv4Header)
		plain := h
		h.Options = []byte{1, 1, 1, 0}
		first, later := plain, plain
		first.MF, later.Offset = true, 1480
		return append(s.notErrorRows(), row("quotes options", h, from), row("quotes a first fragment", first, from),
			s.pass("quotes a later fragment", s.router(), e.header, packet.Bytes(packet.Build(withProtocol(later, uint8(s.protocol)), packet.Zeros(8)))))
	}
	h := ip(s.vip, s.client)
	return append(s.notErrorRows(),
		row("quotes extension headers", h, packet.ExtensionHeader{Kind: packet.HopByHop}, packet.ExtensionHeader{Kind: packet.DestOptions}, from),
		row("quotes a first fragment", h, packet.FragmentHeader{More: true}, from),
		s.pass("quotes a later fragment", s.router(), e.header, packet.Bytes(packet.Build(h, packet.FragmentHeader{Offset: 1480, Next: uint8(s.protocol)}, packet.Zeros(8)))))
}

// notErrorRows are ICMP messages that are neither errors nor echo.
func (s scenario) notErrorRows() []row {
	to := ip(s.client, s.vip)
	if s.vip.Is4() {
		return []row{
			s.pass("timestamp", to, packet.ICMPv4Header{Type: 13}, packet.Zeros(12)),
			s.pass("redirect", to, packet.ICMPv4Header{Type: packet.RedirectMessage}, packet.Quote(8, s.reply(servicePort)...)),
			s.pass("echo reply", to, packet.ICMPv4Header{Type: packet.EchoReply}),
			s.malformed("cut ICMP", withProtocol(to, packet.ProtocolICMP), packet.Bytes{3, 4, 0, 0}),
		}
	}
	return []row{
		s.pass("router advertisement", to, packet.ICMPv6Header{Type: 134}, packet.Zeros(12)),
		s.pass("echo reply", to, packet.ICMPv6Header{Type: packet.EchoReply6}),
		s.malformed("cut ICMP", withProtocol(to, packet.ProtocolICMPv6), packet.Bytes{2, 0, 0, 0}),
	}
}

// pass is the row of a packet that the kernel gets.
func (s scenario) pass(name string, headers ...packet.Header) row {
	return row{name: name, in: build(headers...)}.passed(abi.ReasonPASS_NO_SERVICE)
}

// malformed is the row of a packet that cannot be read.
func (s scenario) malformed(name string, headers ...packet.Header) row {
	return row{name: name, in: build(headers...)}.passed(abi.ReasonPASS_MALFORMED)
}

// padded adds what looks like the rest of the packet, but is behind its end.
func padded(r row, padding []byte) row {
	r.in = append(r.in, padding[3:]...)
	return r
}

// A VIP answers echo; no other address does.
func testEcho(t *testing.T) {
	w := &testWorld{}
	tenant := model.Segment{Kind: model.SegmentVLAN, ID: 100}
	var rows []row
	for _, is4 := range []bool{true, false} {
		vip, client := vipAddress(is4, 1), clientOf(is4)
		w.add(testService{vip: vip, protocol: model.TCP, port: singlePort(80), backends: []testBackend{{}}})
		w.add(testService{vip: vipAddress(is4, 2), segment: tenant, protocol: model.UDP, backends: []testBackend{{}}})
		w.add(testService{vip: vipAddress(is4, 3), protocol: model.UDP, port: singlePort(53)})
		back := packet.EthernetHeader{Dst: clientMAC, Src: ownMAC}
		for _, size := range []int{0, 1, 56, 1400} {
			for n := 1; n <= 3; n++ {
				request, answer := []packet.Header{arrived}, []packet.Header{back}
				if n == 2 {
					tag := packet.VLANTag{ID: 100, Priority: 5}
					request, answer = append(request, tag), append(answer, tag)
				}
				rows = append(rows, row{
					name: fmt.Sprintf("%v, %d bytes", vipAddress(is4, n), size),
					in:   packet.Build(append(request, echo(is4, true, ip(client, vipAddress(is4, n)), size)...)...),
				}.answered(abi.ReasonANSWER_ECHO, packet.Build(append(answer, echo(is4, false, withTTL(ip(vipAddress(is4, n), client), 64), size)...)...)))
			}
		}
		elsewhere := build(echo(is4, true, ip(client, vipAddress(is4, 9)), 8)...)
		otherSegment := build(echo(is4, true, ip(client, vipAddress(is4, 2)), 8)...)
		rows = append(rows,
			row{name: "no VIP", in: elsewhere}.passed(abi.ReasonPASS_NO_SERVICE),
			row{name: "VIP of another segment", in: otherSegment}.passed(abi.ReasonPASS_NO_SERVICE),
			row{name: "other code", in: build(ip(client, vip), strangeEcho(is4))}.passed(abi.ReasonPASS_NO_SERVICE))
	}
	loadTestDirector(t, w).check(t, rows)
}

// testEchoSums: whatever a ping contains, its answer has a checksum that a receiver takes. That
// includes a ping of zeroes, whose answer is all zero (RFC 1624 leaves that case out).
func testEchoSums(t *testing.T) {
	w := &testWorld{}
	random := rand.New(rand.NewPCG(15, 1624))
	for _, is4 := range []bool{true, false} {
		w.add(testService{vip: vipAddress(is4, 1), protocol: model.TCP, port: singlePort(80), backends: []testBackend{{}}})
	}
	d := loadTestDirector(t, w)
	for _, is4 := range []bool{true, false} {
		from, to := clientOf(is4), vipAddress(is4, 1)
		for try := range 3000 {
			rest, payload := uint32(0), make(packet.Bytes, random.IntN(40))
			switch {
			case try < 41:
				payload = make(packet.Bytes, try)
			case try < 41+65536/40:
				rest = random.Uint32() // an ID and a number, and no more
				payload = nil
			case try%3 == 0: // all of it adds up to zero
				rest = 0xffff<<16 | uint32(try)
				payload = binary.BigEndian.AppendUint16(nil, ^uint16(try))
			default:
				rest = random.Uint32()
				for i := range payload {
					payload[i] = byte(random.UintN(256))
				}
			}
			request, reply := packet.Header(packet.ICMPv4Header{Type: packet.EchoRequest, Rest: rest}), packet.Header(packet.ICMPv4Header{Type: packet.EchoReply, Rest: rest})
			if !is4 {
				request, reply = packet.ICMPv6Header{Type: packet.EchoRequest6, Rest: rest}, packet.ICMPv6Header{Type: packet.EchoReply6, Rest: rest}
			}
			in := build(ip(from, to), request, payload)
			action, out := d.run(t, in, 0)
			want := packet.Build(packet.EthernetHeader{Dst: clientMAC, Src: ownMAC}, withTTL(ip(to, from), 64), reply, payload)
			at := len(want) - len(payload) - 6
			if binary.BigEndian.Uint16(want[at:]) == 0 {
				want[at], want[at+1] = 0xff, 0xff // the same sum
			}
			if action != xdpTX || !bytes.Equal(out, want) {
				t.Fatalf("try %d: verdict %d\n%s\nwant\n%s", try, action, packet.Describe(out), packet.Describe(want))
			}
			if err := packet.VerifyChecksums(out); err != nil {
				t.Fatalf("try %d: %v\n%s", try, err, packet.Describe(out))
			}
		}
	}
}

// testEchoOptions: headers between IP's and a ping's are no reason to leave it unanswered.
func testEchoOptions(t *testing.T) {
	w := &testWorld{}
	w.add(testService{vip: vipAddress(false, 1), protocol: model.TCP, port: singlePort(80), backends: []testBackend{{}}})
	w.add(testService{vip: vipAddress(true, 1), protocol: model.TCP, port: singlePort(80), backends: []testBackend{{}}})
	var rows []row
	back := packet.EthernetHeader{Dst: clientMAC, Src: ownMAC}
	chains := map[string][]packet.Header{
		"hop-by-hop":          {packet.ExtensionHeader{Kind: packet.HopByHop}},
		"destination options": {packet.ExtensionHeader{Kind: packet.DestOptions, Data: make([]byte, 20)}},
		"both":                {packet.ExtensionHeader{Kind: packet.HopByHop}, packet.ExtensionHeader{Kind: packet.DestOptions}},
	}
	for name, chain := range chains {
		request, answer := echo(false, true, ip(client6, vipAddress(false, 1)), 56), echo(false, false, withTTL(ip(vipAddress(false, 1), client6), 64), 56)
		rows = append(rows, row{name: name, in: build(slices.Insert(request, 1, chain...)...)}.
			answered(abi.ReasonANSWER_ECHO, packet.Build(append([]packet.Header{back}, slices.Insert(answer, 1, chain...)...)...)))
	}
	options := func(h packet.Header) packet.Header {
		four := h.(packet.IPv4Header)
		four.Options = []byte{1, 1, 1, 0}
		return four
	}
	rows = append(rows, row{name: "IPv4 options", in: build(echo(true, true, options(ip(client4, vipAddress(true, 1))), 56)...)}.
		answered(abi.ReasonANSWER_ECHO, packet.Build(append([]packet.Header{back}, echo(true, false, options(withTTL(ip(vipAddress(true, 1), client4), 64)), 56)...)...)))
	loadTestDirector(t, w).check(t, rows)
}

func echo(is4, request bool, ip packet.Header, size int) []packet.Header {
	payload := packet.Zeros(size)
	for i := range payload {
		payload[i] = byte(i)
	}
	kinds := map[[2]bool]packet.Header{
		{true, true}:   packet.ICMPv4Header{Type: packet.EchoRequest, Rest: packet.EchoID(77, 3)},
		{true, false}:  packet.ICMPv4Header{Type: packet.EchoReply, Rest: packet.EchoID(77, 3)},
		{false, true}:  packet.ICMPv6Header{Type: packet.EchoRequest6, Rest: packet.EchoID(77, 3)},
		{false, false}: packet.ICMPv6Header{Type: packet.EchoReply6, Rest: packet.EchoID(77, 3)},
	}
	return []packet.Header{ip, kinds[[2]bool{is4, request}], payload}
}

func strangeEcho(is4 bool) packet.Header {
	if is4 {
		return packet.ICMPv4Header{Type: packet.EchoRequest, Code: 1}
	}
	return packet.ICMPv6Header{Type: packet.EchoRequest6, Code: 1}
}
