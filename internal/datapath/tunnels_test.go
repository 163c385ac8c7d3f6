package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// ownInside4 and 6 are addresses that the director itself has in the tenant's network.
var (
	ownInside4 = netip.MustParseAddr("10.1.9.9")
	ownInside6 = netip.MustParseAddr("2001:db8:1::99:99")
	everyMAC   = [6]byte{255, 255, 255, 255, 255, 255}
)

// testTunnels are packets of tunnels that are like no packet without one.
func testTunnels(t *testing.T) {
	defer func() { inTunnels = nil }()
	for _, w := range tunnelWorlds {
		inTunnels = &w
		t.Run(w.String(), func(t *testing.T) {
			world := &testWorld{}
			l2dsr := func(way wayTo) bool { return way.mode == model.L2DSR }
			scenarios := world.scenarios(l2dsr)
			d := loadTestDirector(t, world)
			for _, s := range scenarios {
				t.Run(s.name, func(t *testing.T) {
					d.checkAsIs(t, w.outerRows(s))
					var marked []row
					for _, r := range w.congestedRows(s) {
						marked = append(marked, d.markedRow(r))
					}
					d.checkAsIs(t, marked)
				})
			}
			for _, a := range []netip.Addr{ownInside4, ownInside6} {
				d.put(t, "vtep_own_addresses", insideKey(w.segment(), a), abi.VtepOwn{Flags: uint16(abi.VtepOwnFlagVTEP_OWN_ANSWERS | abi.VtepOwnFlagVTEP_OWN_HOST), Mac: ownMAC})
			}
			vip := scenarios[0].vip
			d.put(t, "vtep_own_addresses", insideKey(w.segment(), vip), abi.VtepOwn{Flags: uint16(abi.VtepOwnFlagVTEP_OWN_ANSWERS), Mac: ownMAC})
			t.Run("questions", func(t *testing.T) { d.check(t, w.questions(vip)) })
			t.Run("questions in a VLAN", func(t *testing.T) { d.checkAsIs(t, d.questionsInVLAN(t, vip)) })
			t.Run("questions beyond a limit", func(t *testing.T) { d.questionsBeyondLimit(t, vip) })
			t.Run("nothing says where the client is", testClientNowhere)
		})
	}
}

// testClientNowhere is about replies to a client of which nothing says where it is.
func testClientNowhere(t *testing.T) {
	world := &testWorld{}
	scenarios := world.scenarios(isPlainNAT)
	d := loadTestDirector(t, world)
	for six := range uint32(2) {
		must(t, d.Maps["vtep_hosts"].Delete(abi.VtepAddress{Segment: inTunnels.segment().Key(), Ipv6: six}))
	}
	for _, s := range scenarios {
		d.check(t, []row{row{name: s.name, in: build(s.answer(s.client, 10)...)}.dropped(abi.ReasonDROP_OVERLAY_HOST, s.testService)})
	}
}

// testSourceInside sees full NAT's source in a tenant's network: a backend gets packets from it, and answers to it
// reach the client. The same answer in another tenant's network, whose backends may have the same addresses, is nobody's.
func testSourceInside(t *testing.T) {
	defer func() { inTunnels = nil }()
	for _, w := range tunnelWorlds {
		inTunnels = &w
		t.Run(w.String(), func(t *testing.T) {
			world := &testWorld{}
			scenarios := world.scenarios(isFullNAT)
			d := loadTestDirector(t, world)
			d.putSNAT(t, []netip.Addr{snatSources[0], snatSources[len(snatSources)-1]}, snatPorts)
			own := func(six bool) netip.Addr { return pick(six, ownInside6, ownInside4) }
			stranger, other := w, model.Segment{Kind: w.kind, ID: insideID + 1}
			stranger.vni = insideVNI + 1
			d.put(t, "vtep_networks", model.Segment{Kind: w.kind, ID: stranger.vni}.Key(), abi.VtepNetwork{Segment: other.Key(), Mac: ownMAC})
			for _, segment := range []model.Segment{w.segment(), other} {
				for _, a := range []netip.Addr{ownInside4, ownInside6} {
					d.put(t, "vtep_own_addresses", insideKey(segment, a), abi.VtepOwn{Flags: uint16(abi.VtepOwnFlagVTEP_OWN_ANSWERS | abi.VtepOwnFlagVTEP_OWN_SNAT), Mac: ownMAC})
				}
			}
			for _, s := range scenarios {
				source := own(s.vip.Is6())
				for i := range uint32(len(s.backends)) {
					d.put(t, "vtep_backends", s.first+i, abi.VtepBackend{Place: s.first + i, Segment: w.segment().Key(), ServiceSegment: w.segment().Key(),
						Uses: uint32(abi.VtepSourceVTEP_SOURCE_SNAT), Source: abi.AddressBytes(source)})
				}
				action, out := d.run(t, w.arrives(build(append([]packet.Header{ip(s.client, s.vip)}, s.numbered(clientPort, servicePort, packet.SYN, false)...)...)), 0)
				from, to := endsOf(w.innerOf(out))
				b := s.backends[0]
				if action != xdpTX || from.Addr() != source || to != netip.AddrPortFrom(b.address, b.port) {
					t.Fatalf("%s: the backend gets a packet from %v to %v (action %d), want one from %v to %v", s.name, from, to, action, source, b.address)
				}
				answer := build(append([]packet.Header{ip(b.address, source)}, s.numbered(b.port, from.Port(), packet.SYN|packet.ACK, true)...)...)
				if action, out := d.run(t, stranger.arrives(answer), 0); action == xdpTX {
					from, to := endsOf(stranger.innerOf(out))
					t.Errorf("%s: an answer of another tenant's host leaves from %v to %v", s.name, from, to)
				}
				action, out = d.run(t, w.arrives(answer), 0)
				if from, to := endsOf(w.innerOf(out)); action != xdpTX || from != netip.AddrPortFrom(s.vip, servicePort) || to != netip.AddrPortFrom(s.client, clientPort) {
					t.Errorf("%s: the client gets an answer from %v to %v (action %d), want one from %v to %v", s.name, from, to, action, s.vip, s.client)
				}
			}
		})
	}
}

// endsOf are the addresses and ports of a frame without tags, whose packet has no options or extensions.
func endsOf(frame []byte) (from, to netip.AddrPort) {
	at, length := 26, 4
	if len(frame) > 14 && frame[14]>>4 == 6 {
		at, length = 22, 16
	}
	l4 := at + 2*length
	if len(frame) < l4+4 {
		return from, to
	}
	source, _ := netip.AddrFromSlice(frame[at : at+length])
	destination, _ := netip.AddrFromSlice(frame[at+length : l4])
	return netip.AddrPortFrom(source, binary.BigEndian.Uint16(frame[l4:])), netip.AddrPortFrom(destination, binary.BigEndian.Uint16(frame[l4+2:]))
}

// testConversions are packets that come in one kind of network, and leave in another one.
func testConversions(t *testing.T) {
	defer func() { inTunnels = nil }()
	vlan, none := model.Segment{Kind: model.SegmentVLAN, ID: 7}, model.Segment{}
	ways := []tunnelWorld{tunnelWorlds[0], tunnelWorlds[2], tunnelWorlds[3], tunnelWorlds[5], tunnelWorlds[6]}
	for _, to := range ways {
		inTunnels = &to
		to.from = &none
		t.Run("untagged to "+to.String(), func(t *testing.T) { testConversion(t, func(frame []byte) []byte { return frame }) })
		to.from = &vlan
		t.Run("VLAN to "+to.String(), func(t *testing.T) {
			testConversion(t, func(frame []byte) []byte { return slices.Concat(frame[:12], []byte{0x81, 0, 0, 7}, frame[12:]) })
		})
		for _, from := range ways {
			if from.tag != to.tag { // this VTEP is in one VLAN
				continue
			}
			segment := model.Segment{Kind: from.kind, ID: insideID + 1}
			to.from, to.fromVNI = &segment, insideVNI+1
			t.Run(from.String()+" to "+to.String(), func(t *testing.T) {
				from.vni = insideVNI + 1
				testConversion(t, from.arrives)
			})
		}
	}
}

// testConversion sends packets of all modes, which arrive as their frames say.
func testConversion(t *testing.T, arrives func(frame []byte) []byte) {
	world := &testWorld{}
	scenarios := world.scenarios(notFullNAT)
	d := loadTestDirector(t, world)
	w := d.tunnels
	for _, s := range scenarios {
		var rows []row
		for _, payload := range []int{0, 100, 1200} {
			r := s.forward(s.name, s.flow(), 0, s.data(payload)...)
			length, inner := ipLength(r.in), r.out
			r.in, r.bytes, r.out = arrives(r.in), &length, nil
			r.late = func(_ *testing.T, left []byte) []byte { return w.leaves(inner, left, w.vtepOf(r.backend), w.options) }
			rows = append(rows, r)
		}
		d.checkAsIs(t, rows)
	}
}

// checkAsIs checks rows whose frames have their tunnels' headers already.
func (d *testDirector) checkAsIs(t *testing.T, rows []row) {
	t.Helper()
	w := d.tunnels
	d.tunnels = nil
	defer func() { d.tunnels = w }()
	d.check(t, rows)
}

// outerRows are frames whose outer headers are amiss, or are for others.
func (w *tunnelWorld) outerRows(s scenario) []row {
	none := uint64(0)
	inner := packet.Build(append([]packet.Header{arrived}, s.data(40)...)...)
	good := w.arrives(inner)
	l3 := 14 + 4*int(truth(w.tag != 0))
	l4 := l3 + 20 + 20*int(truth(w.six))
	change := func(name string, reason abi.Reason, change func(frame []byte) []byte) row {
		r := row{name: name, in: change(slices.Clone(good)), bytes: &none}
		if reason == abi.ReasonPASS_OVERLAY_VNI {
			return r.passed(reason)
		}
		return r.dropped(reason, nil)
	}
	at := func(offset int, value byte) func([]byte) []byte {
		return func(frame []byte) []byte {
			frame[offset] = value
			return w.mended(frame)
		}
	}
	rows := []row{
		change("unknown VNI", abi.ReasonPASS_OVERLAY_VNI, at(l4+8+4, 0x7f)),
		change("from an unknown VTEP", abi.ReasonDROP_OVERLAY_PEER, at(pick(w.six, l3+23, l3+15), 0x7f)),
		change("UDP length too long", abi.ReasonDROP_OVERLAY_MALFORMED, at(l4+5, good[l4+5]+1)),
		change("UDP length too short", abi.ReasonDROP_OVERLAY_MALFORMED, at(l4+5, good[l4+5]-1)),
	}
	if w.kind == model.SegmentVXLAN {
		rows = append(rows, change("no VNI", abi.ReasonDROP_OVERLAY_MALFORMED, at(l4+8, 0)))
	} else {
		rows = append(rows,
			change("version 1", abi.ReasonDROP_OVERLAY_MALFORMED, at(l4+8, good[l4+8]|0x40)),
			change("control", abi.ReasonDROP_OVERLAY_MALFORMED, at(l4+9, 0x80)),
			change("no Ethernet inside", abi.ReasonDROP_OVERLAY_MALFORMED, at(l4+10, 8)),
			change("options beyond the end", abi.ReasonDROP_OVERLAY_MALFORMED, at(l4+8, 63)))
		rows = append(rows, w.optionRows(inner)...)
	}
	// Cut at each byte, with lengths that say so: up to the Ethernet header inside it is the tunnel that is cut.
	header := len(good) - len(inner)
	for end := l4 + 8; end < header+14; end++ {
		rows = append(rows, change("cut", abi.ReasonDROP_OVERLAY_MALFORMED, func(frame []byte) []byte { return w.lengthened(frame[:end]) }))
	}
	// The packet inside ends behind the tunnel that it is in.
	rows = append(rows, row{name: "inside is longer", in: w.lengthened(good[:len(good)-1]), bytes: &none}.passed(abi.ReasonPASS_MALFORMED))
	other := slices.Clone(inner)
	other[5] ^= 1
	rows = append(rows, row{name: "for another host", in: w.arrives(other), bytes: &none}.passed(abi.ReasonPASS_OVERLAY_ASTRAY),
		row{name: "for another host, marked", in: w.marked(other, 3), bytes: &none}.passed(abi.ReasonPASS_OVERLAY_ASTRAY))
	return rows
}

// optionRows are Geneve's options: those that a receiver need not know are skipped.
func (w *tunnelWorld) optionRows(inner []byte) (rows []row) {
	none := uint64(0)
	for name, test := range map[string]struct {
		options string
		flags   uint8
		reason  abi.Reason
	}{
		"critical and unknown":             {"\x01\x03\x80\x01abcd", 0x40, abi.ReasonDROP_OVERLAY_OPTION},
		"critical after one that is not":   {"\x01\x03\x00\x01abcd\x01\x04\x81\x00", 0x40, abi.ReasonDROP_OVERLAY_OPTION},
		"longer than there is room for it": {"\x01\x03\x00\x02abcd", 0, abi.ReasonDROP_OVERLAY_MALFORMED},
	} {
		of := *w
		of.options = model.GeneveOptions(test.options)
		frame := of.arrives(inner)
		rows = append(rows, row{name: name, in: frame, bytes: &none}.dropped(test.reason, nil))
	}
	return rows
}

// lengthened makes the lengths of the outer headers those of a frame.
func (w *tunnelWorld) lengthened(frame []byte) []byte {
	frame = slices.Clone(frame)
	l3 := 14 + 4*int(truth(w.tag != 0))
	l4 := l3 + 20 + 20*int(truth(w.six))
	if w.six {
		binary.BigEndian.PutUint16(frame[l3+4:], uint16(len(frame)-l3-40))
	} else {
		binary.BigEndian.PutUint16(frame[l3+2:], uint16(len(frame)-l3))
	}
	if len(frame) >= l4+6 {
		binary.BigEndian.PutUint16(frame[l4+4:], uint16(len(frame)-l4))
	}
	return w.mended(frame)
}

// mended corrects the checksum of an outer IPv4 header.
func (w *tunnelWorld) mended(frame []byte) []byte {
	l3 := 14 + 4*int(truth(w.tag != 0))
	if w.six {
		return frame
	}
	frame[l3+10], frame[l3+11] = 0, 0
	sum := uint32(0)
	for i := l3; i < l3+20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(frame[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(frame[l3+10:], ^uint16(sum))
	return frame
}

// congestedRows are packets that a router of the underlay has marked (RFC 6040, section 4.2).
func (w *tunnelWorld) congestedRows(s scenario) (rows []row) {
	const ect1, congested = 1, 3
	for mark, table := range map[uint8]map[uint8]uint8{congested: {0: 0, 1: 3, 2: 3, 3: 3}, ect1: {0: 0, 1: 1, 2: 1, 3: 3}} {
		for arrives, leaves := range table {
			of := func(ecn uint8) []packet.Header {
				return []packet.Header{withTOS(ip(s.client, s.vip), 0x28|ecn), l4(s.protocol, clientPort, servicePort), packet.Text("data")}
			}
			r := s.forward(fmt.Sprintf("%d marked %d", arrives, mark), s.flow(), 0, of(leaves)...)
			r.in = w.marked(build(of(arrives)...), mark)
			if arrives == 0 && mark == congested {
				none := uint64(0)
				r = row{name: "marked and cannot be", in: r.in, bytes: &none}.dropped(abi.ReasonDROP_OVERLAY_CONGESTED, nil)
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// marked is a frame in a tunnel that a router has marked.
func (w *tunnelWorld) marked(frame []byte, mark byte) []byte {
	frame = w.arrives(frame)
	l3 := 14 + 4*int(truth(w.tag != 0))
	if w.six {
		frame[l3+1] |= mark << 4
		return frame
	}
	frame[l3+1] |= mark
	return w.mended(frame)
}

// markedRow is inside for a row whose packet is in its tunnel already.
func (d *testDirector) markedRow(r row) row {
	in := r.in
	r.in = d.tunnels.innerOf(in)
	r = d.inside(r)
	r.in = in
	return r
}

// questions are ARP, NDP and pings for addresses of this director.
func (w *tunnelWorld) questions(vip netip.Addr) []row {
	asker4, asker6 := netip.MustParseAddr("10.1.0.200"), netip.MustParseAddr("2001:db8:1::200")
	var rows []row
	for _, target := range []netip.Addr{ownInside4, vip, netip.MustParseAddr("10.1.0.77")} {
		arp := packet.ARPHeader{Operation: packet.ARPRequest, SenderMAC: clientMAC, Sender: asker4.As4(), Target: target.As4()}
		r := row{name: "ARP for " + target.String(), in: packet.Build(packet.EthernetHeader{Dst: everyMAC, Src: clientMAC}, arp)}
		if target == rows200 {
			rows = append(rows, r.passed(abi.ReasonPASS_NOT_IP))
			continue
		}
		answer := packet.ARPHeader{Operation: packet.ARPReply, SenderMAC: ownMAC, Sender: target.As4(), TargetMAC: clientMAC, Target: asker4.As4()}
		rows = append(rows, r.answered(abi.ReasonANSWER_NEIGHBOR, packet.Build(packet.EthernetHeader{Dst: clientMAC, Src: ownMAC}, answer)))
	}
	gratuitous := packet.ARPHeader{Operation: packet.ARPReply, SenderMAC: clientMAC, Sender: ownInside4.As4(), Target: ownInside4.As4()}
	rows = append(rows, row{name: "ARP that is no question", in: packet.Build(packet.EthernetHeader{Dst: everyMAC, Src: clientMAC}, gratuitous)}.passed(abi.ReasonPASS_NOT_IP))
	for _, from := range []netip.Addr{asker6, netip.IPv6Unspecified()} {
		rows = append(rows, solicited(from, ownInside6))
	}
	for _, to := range []netip.Addr{ownInside4, ownInside6} {
		from := pick(to.Is6(), asker6, asker4)
		rows = append(rows, pinged(from, to))
	}
	return rows
}

// questionsInVLAN are the same with a tag, for a director without an interface in that VLAN.
func (d *testDirector) questionsInVLAN(t *testing.T, vip netip.Addr) []row {
	segment := model.Segment{Kind: model.SegmentVLAN, ID: 9}
	for _, a := range []netip.Addr{ownInside4, ownInside6, vip} {
		flags := abi.VtepOwnFlagVTEP_OWN_ANSWERS
		if a != vip {
			flags |= abi.VtepOwnFlagVTEP_OWN_HOST
		}
		d.put(t, "vtep_own_addresses", insideKey(segment, a), abi.VtepOwn{Flags: uint16(flags), Mac: ownMAC})
	}
	tagged := func(frame []byte) []byte { return slices.Concat(frame[:12], []byte{0x81, 0, 0, 9}, frame[12:]) }
	rows := d.tunnels.questions(vip)
	for i := range rows {
		length := ipLength(rows[i].in)
		rows[i].in, rows[i].bytes = tagged(rows[i].in), &length
		if rows[i].out != nil {
			rows[i].out = tagged(rows[i].out)
		}
	}
	return rows
}

// questionsBeyondLimit asks when the segment has had all that it may have now. What is no question for this director is
// no packet of the segment's.
func (d *testDirector) questionsBeyondLimit(t *testing.T, vip netip.Addr) {
	const quota = 7
	settings := d.world.abiSettings()
	settings.Flags |= uint32(abi.SettingsFlagSETTINGS_QUOTAS)
	d.put(t, "this_director", uint32(0), settings)
	d.put(t, "segment_quotas", d.tunnels.segment().Key(), uint32(quota))
	d.put(t, "quotas", uint32(quota), abi.Quota{Packets: 1, Batch: 1})
	rows := d.tunnels.questions(vip)
	onCPU(t, 0, func() {
		beginWindow(t)
		d.check(t, rows[:1])
		for i := range rows[1:] {
			if r := &rows[1+i]; r.action == xdpTX {
				r.reason, r.action, r.out = abi.ReasonDROP_SEGMENT_LIMIT, xdpDrop, nil
			}
		}
		d.check(t, rows[1:])
	})
}

var rows200 = netip.MustParseAddr("10.1.0.77")

// solicited is a neighbor solicitation, with its answer (RFC 4861, 4.3 and 4.4).
func solicited(from, target netip.Addr) row {
	of := target.As16()
	group := netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 12: 0xff, 13: of[13], 14: of[14], 15: of[15]})
	question := append(append(packet.Bytes{}, of[:]...), append([]byte{1, 1}, clientMAC[:]...)...)
	flags, to := uint32(0x60000000), from
	if from == netip.IPv6Unspecified() {
		question = question[:16]
		flags, to = 0x20000000, netip.MustParseAddr("ff02::1")
	}
	answer := append(append(packet.Bytes{}, of[:]...), append([]byte{2, 1}, ownMAC[:]...)...)
	in := packet.Build(packet.EthernetHeader{Dst: [6]byte{0x33, 0x33, 0xff, of[13], of[14], of[15]}, Src: clientMAC},
		packet.IPv6Header{Src: from, Dst: group, HopLimit: 255}, packet.ICMPv6Header{Type: 135}, question)
	out := packet.Build(packet.EthernetHeader{Dst: clientMAC, Src: ownMAC},
		packet.IPv6Header{Src: target, Dst: to, HopLimit: 255}, packet.ICMPv6Header{Type: 136, Rest: flags}, answer)
	return row{name: "solicitation from " + from.String(), in: in}.answered(abi.ReasonANSWER_NEIGHBOR, out)
}

// pinged is an echo request, with its answer.
func pinged(from, to netip.Addr) row {
	request, reply := packet.Header(packet.ICMPv4Header{Type: 8, Rest: 7}), packet.Header(packet.ICMPv4Header{Type: 0, Rest: 7})
	if to.Is6() {
		request, reply = packet.ICMPv6Header{Type: 128, Rest: 7}, packet.ICMPv6Header{Type: 129, Rest: 7}
	}
	in := packet.Build(arrived, ip(from, to), request, packet.Text("ping"))
	out := packet.Build(packet.EthernetHeader{Dst: clientMAC, Src: ownMAC}, withTTL(ip(to, from), 64), reply, packet.Text("ping"))
	return row{name: "ping to " + to.String(), in: in}.answered(abi.ReasonANSWER_ECHO, out)
}
