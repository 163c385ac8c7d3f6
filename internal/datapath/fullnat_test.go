package datapath

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// flowEntry is one flow of full NAT as it is in the kernel.
type flowEntry struct {
	abi.SnatFlow
	source end // that it was given
}

// flows reads full NAT's table: all entries that are in use, by their number.
func (d *testDirector) flows(t testing.TB) map[int]flowEntry {
	t.Helper()
	ports := int(snatPorts.Last-snatPorts.First) + 1
	out := map[int]flowEntry{}
	for bucket := 1; bucket < int(d.snat.MaxEntries()); bucket++ {
		var entries abi.SnatBucket
		must(t, d.snat.Lookup(uint32(bucket), &entries))
		for i, e := range entries.Flows {
			at := (bucket-1)*snatBucketSize + i
			if e.State != 0 {
				address := snatSources[at/ports/2]
				out[at] = flowEntry{e, end{address, snatPorts.First + uint16(at%ports)}}
			}
		}
	}
	return out
}

// setFlow writes one entry.
func (d *testDirector) setFlow(t testing.TB, at int, e abi.SnatFlow) {
	t.Helper()
	var entries abi.SnatBucket
	bucket := uint32(at/snatBucketSize + 1)
	must(t, d.snat.Lookup(bucket, &entries))
	entries.Flows[at%snatBucketSize] = e
	must(t, d.snat.Update(bucket, &entries, ebpf.UpdateExist))
}

// flowOf returns the one entry of a client's flow to the service.
func (s scenario) flowOf(t testing.TB, d *testDirector, port uint16) (int, flowEntry) {
	t.Helper()
	number := -1
	all := d.flows(t)
	for at, e := range all {
		if e.Client == abiAddress(s.client) && e.ClientPort == be16(port) && e.Vip == abiAddress(s.vip) && e.VipPort == be16(servicePort) {
			if number >= 0 {
				t.Fatalf("port %d has two entries", port)
			}
			number = at
		}
	}
	if number < 0 {
		t.Fatalf("port %d has no entry", port)
	}
	return number, all[number]
}

// opening is what begins a flow: a SYN or a datagram.
func (s scenario) opening(port uint16) []packet.Header {
	if s.protocol == model.TCP {
		return []packet.Header{ip(s.client, s.vip), packet.TCPHeader{Src: port, Dst: servicePort, Seq: 7, Flags: packet.SYN, Options: []byte{2, 4, 5, 0xb4}}}
	}
	return []packet.Header{ip(s.client, s.vip), l4(s.protocol, port, servicePort), packet.Text("hello")}
}

// testFullNAT: both directions of flows that have a source of the director's own.
func testFullNAT(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isFullNAT)
	d := loadTestDirector(t, w)
	d.put(t, "egress", wireNumber, wireNumber)
	for i, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			d.check(t, s.unknownRows())
			d.check(t, []row{s.fullForward("begins", d, s.opening(clientPort)...)})
			_, e := s.flowOf(t, d, clientPort)
			d.check(t, s.fullForwardRows(d))
			d.check(t, s.fullReplyRows(e.source))
			d.check(t, s.fullErrorRows(e.source))
			d.check(t, s.fullFragmentRows(uint32(i*100), e.source))
			s.checkSource(t, e.source)
		})
	}
}

// checkSource checks that a source is one of those that the director was given.
func (s scenario) checkSource(t *testing.T, source end) {
	t.Helper()
	if source.address.Is4() != s.vip.Is4() || !snatPorts.Contains(source.port) {
		t.Errorf("flow from %v has source %v", s.client, source)
	}
}

// unknownRows are packets of flows that the director did not see begin.
func (s scenario) unknownRows() (rows []row) {
	nobody := s.sourceEnd(0)
	rows = append(rows, s.pass("reply to no flow", translated(s.answer(nobody.address, 3), end{}, end{port: nobody.port}, 0)...))
	if s.protocol != model.TCP {
		return rows
	}
	for name, flags := range map[string]uint8{"ACK": packet.ACK, "SYN-ACK": packet.SYN | packet.ACK, "RST": packet.RST, "FIN": packet.FIN | packet.ACK} {
		in := build(ip(s.client, s.vip), packet.TCPHeader{Src: clientPort + 1, Dst: servicePort, Flags: flags})
		rows = append(rows, row{name: name + " of no flow", in: in}.dropped(abi.ReasonDROP_SNAT_UNKNOWN, s.testService))
	}
	e := icmpErrors(s.vip.Is4())[0]
	about := row{name: "error about no flow", in: build(s.router(), e.header, packet.Quote(8, s.reply(servicePort)...))}
	return append(rows, about.dropped(abi.ReasonDROP_SNAT_UNKNOWN, s.testService))
}

// sourceEnd is the n-th port of the first source address.
func (s scenario) sourceEnd(n uint16) end {
	if s.vip.Is4() {
		return end{snatSources[0], snatPorts.First + n}
	}
	return end{snatSources[2], snatPorts.First + n}
}

// fullForward is the row of a client's packet that leaves from its flow's source.
func (s scenario) fullForward(name string, d *testDirector, headers ...packet.Header) row {
	r := row{name: name, in: build(headers...)}.forwarded(abi.ReasonFORWARD_NAT, s.testService, 0, nil)
	r.late = func(t *testing.T, _ []byte) []byte {
		_, e := s.flowOf(t, d, clientPort)
		return packet.Build(append([]packet.Header{s.left(0)}, translated(headers, e.source, s.backendEnd(), 1)...)...)
	}
	return r
}

func (s scenario) fullForwardRows(d *testDirector) []row {
	to, from := ip(s.client, s.vip), l4(s.protocol, clientPort, servicePort)
	rows := []row{
		s.fullForward("data", d, s.data(100)...),
		s.fullForward("odd payload", d, to, from, packet.Text("odd")),
		s.fullForward("largest that fits", d, s.sized(1500)...),
		row{name: "TTL 1", in: build(withTTL(to, 1), from)}.passed(abi.ReasonPASS_TTL_EXPIRED),
		s.tooBig("does not fit", nil, s.sized(1501)),
	}
	if s.vip.Is4() {
		options := to.(packet.IPv4Header)
		options.Options = []byte{1, 1, 1, 0}
		return append(rows, s.fullForward("IP options", d, options, from, packet.Text("x")))
	}
	return append(rows, s.fullForward("extension headers", d, to, packet.ExtensionHeader{Kind: packet.HopByHop},
		packet.ExtensionHeader{Kind: packet.DestOptions}, from, packet.Text("x")))
}

// back is a packet of the backend to a flow's source.
func (s scenario) back(source end, payload int) []packet.Header {
	b := s.backendEnd()
	return []packet.Header{ip(b.address, source.address), l4(s.protocol, b.port, source.port), packet.Zeros(payload)}
}

func (s scenario) clientEnd() end { return end{s.client, clientPort} }

func (s scenario) fullReplyRows(source end) []row {
	answer := s.back(source, 100)
	reply := func(name string, headers ...packet.Header) row {
		return s.sent(name, abi.ReasonFORWARD_REPLY, build(headers...), translated(headers, s.vipEnd(), s.clientEnd(), 1)...)
	}
	last := []packet.Header{withTTL(answer[0], 1), answer[1]}
	told := scenario{testService: &testService{vip: source.address}, client: s.backendEnd().address}
	return []row{
		reply("reply", answer...),
		reply("odd reply", answer[0], answer[1], packet.Text("odd")),
		{name: "reply with TTL 1", in: build(last...), reason: abi.ReasonPASS_REPLY_UNROUTED, action: xdpPass,
			out: build(translated(last, s.vipEnd(), s.clientEnd(), 0)...)},
		told.tooBig("reply that does not fit", nil, s.back(source, 1600)),
		s.pass("from another port", answer[0], l4(s.protocol, otherPort, source.port)),
		s.pass("from another host", ip(backendAddress(s.vip.Is4(), 0xfff), source.address), answer[1]),
		s.pass("from the other backend", ip(s.backends[1].address, source.address), answer[1]),
		s.pass("to another port", answer[0], l4(s.protocol, s.backendEnd().port, source.port^1)),
	}
}

// fullErrorRows are errors from both sides. Towards the backend they come from
// the director, whoever sent them: the backend knows of no client.
func (s scenario) fullErrorRows(source end) (rows []row) {
	is4 := s.vip.Is4()
	router := numbered(is4, 9, 1)
	for _, e := range icmpErrors(is4) {
		for _, quoted := range []int{8, 20, 1000} {
			in := build(s.router(), e.header, packet.Quote(quoted, s.reply(servicePort)...))
			original := translated(s.reply(servicePort), s.backendEnd(), source, 0)
			out := packet.Build(s.left(0), withTTL(ip(source.address, s.backendEnd().address), 56), e.header, packet.Quote(quoted, original...))
			rows = append(rows, row{name: fmt.Sprintf("%s to the backend, %d bytes", e.name, quoted), in: in}.
				forwarded(abi.ReasonFORWARD_ICMP_ERROR, s.testService, 0, out))

			about := s.data(30)
			received := translated(about, source, s.backendEnd(), 1)
			told := translated(about, end{}, end{}, 1)
			for from, as := range map[netip.Addr]netip.Addr{s.backendEnd().address: s.vip, router: router} {
				rows = append(rows, s.sent(fmt.Sprintf("%s from %v, %d bytes", e.name, from, quoted), abi.ReasonFORWARD_ICMP_ERROR,
					build(ip(from, source.address), e.header, packet.Quote(quoted, received...)),
					withTTL(ip(as, s.client), 56), e.header, packet.Quote(quoted, told...)))
			}
		}
	}
	return rows
}

func (s scenario) fullFragmentRows(id uint32, source end) (rows []row) {
	in, out := pieces(id, s.data(600)...), pieces(id, translated(s.data(600), source, s.backendEnd(), 1)...)
	back, client := pieces(id+1, s.back(source, 600)...), pieces(id+1, translated(s.back(source, 600), s.vipEnd(), s.clientEnd(), 1)...)
	for i := range in {
		reason, reply := abi.ReasonFORWARD_FRAGMENT, abi.ReasonFORWARD_FRAGMENT
		if i == 0 && ofSCTP(s) {
			rows = append(rows, row{name: "fragment 0", in: in[0]}.dropped(abi.ReasonDROP_FRAGMENT_PORTS, s.testService),
				row{name: "fragment 0 of a reply", in: back[0]}.dropped(abi.ReasonDROP_FRAGMENT_PORTS, s.testService))
			continue
		}
		if i == 0 {
			reason, reply = abi.ReasonFORWARD_NAT, abi.ReasonFORWARD_REPLY
		}
		rows = append(rows,
			row{name: fmt.Sprintf("fragment %d", i), in: in[i]}.forwarded(reason, s.testService, 0, relinked(out[i], s.left(0))),
			row{name: fmt.Sprintf("fragment %d of a reply", i), in: back[i], reason: reply, action: xdpRedirect, out: relinked(client[i], routed(s.client))})
	}
	return rows
}

// relinked is a frame with other addresses in front.
func relinked(frame []byte, link packet.EthernetHeader) []byte {
	copy(frame, link.Dst[:])
	copy(frame[6:], link.Src[:])
	return frame
}
