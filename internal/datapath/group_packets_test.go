package datapath

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// Directors of the group by their numbers: two on the link that packets come in by,
// one on another link, one whose link is narrow, and one that there is not.
const (
	groupSelf = iota
	groupPeer
	groupSecond
	groupBeside
	groupNarrow
	groupGone
)

// EtherTypes between directors.
const (
	groupMeet = 0x88b5
	groupTake = 0x88b6
)

func peerMAC(number int) [6]byte { return [6]byte{2, 0, 0, 0, 7, byte(number)} }

// putGroup says which director every fragment belongs to.
func (d *testDirector) putGroup(t testing.TB, owner, second uint32) {
	t.Helper()
	for number := groupPeer; number < groupGone; number++ {
		p := abi.Peer{Mac: peerMAC(number), SourceMac: ownMAC, Mtu: 1500, Ifindex: ingress}
		switch number {
		case groupBeside:
			p.Ifindex = otherEgress
		case groupNarrow:
			p.Mtu = 200
		}
		d.put(t, "peers", uint32(number), p)
		d.put(t, "peer_macs", nexthop.MACWord(peerMAC(number)), uint32(number))
	}
	for slot := range uint32(groupSlots) {
		d.put(t, "group_slots", slot, abi.GroupSlot{Owner: owner, Second: second})
	}
}

func groupWorld() *testWorld {
	return &testWorld{settings: abi.Settings{Flags: uint32(abi.SettingsFlagSETTINGS_GROUP), WaitRate: 1 << 30}}
}

// withTrips is a packet whose TTL counts how often it was sent between directors: it
// arrived with 57.
func withTrips(headers []packet.Header, trips uint8) []packet.Header {
	return append([]packet.Header{withTTL(headers[0], 56|trips)}, headers[1:]...)
}

// between is a fragment's frame between two directors.
func between(to, from [6]byte, etherType uint16, frame []byte) []byte {
	return packet.Build(packet.EthernetHeader{Dst: to, Src: from, Type: etherType}, packet.Bytes(frame[14:]))
}

// Fragments go to the director that they belong to.
func testGroup(t *testing.T) {
	w := groupWorld()
	scenarios := w.scenarios(notFullNAT)
	d := loadTestDirector(t, w)
	for i, s := range scenarios {
		if ofSCTP(s) && s.backends[0].mode == model.NAT {
			continue // its first fragments are dropped: testNATFragments
		}
		id := uint32(100 * i)
		t.Run(s.name, func(t *testing.T) {
			d.putGroup(t, groupPeer, groupSecond)
			d.check(t, s.groupAwayRows(id))
			d.putGroup(t, groupSelf, groupSecond)
			d.check(t, s.groupOwnRows(id+20))
			d.check(t, s.groupArrivedRows(id+40))
			for name, to := range map[string][2]uint32{"owner is gone": {groupGone, groupSecond}, "nobody to wait with": {groupSelf, groupSelf}} {
				d.putGroup(t, to[0], to[1])
				one := pieces(id+60+to[0], s.data(600)...)
				d.check(t, []row{
					row{name: name, in: one[1]}.dropped(abi.ReasonDROP_FRAGMENT_UNKNOWN, nil),
					s.fragment(name+", first", one[0], s.data(600)),
				})
			}
		})
	}
}

// fragment is the row of a fragment, of a packet with these headers, that goes to its
// backend.
func (s scenario) fragment(name string, in []byte, headers []packet.Header) row {
	pieces := pieces(fragmentID(in), headers...)
	r := row{name: name, in: in}
	reason := s.forward("", s.flow(), 0, s.data(0)...).reason
	at := fragmentOffset(in) / 256
	if at > 0 {
		reason = abi.ReasonFORWARD_FRAGMENT
	}
	if s.backends[0].mode != model.NAT {
		return r.forwarded(reason, s.testService, 0, s.leaves(s.flow(), 0, packet.Bytes(pieces[at][14:])))
	}
	out := packet.Fragments(fragmentID(in), 256, append([]packet.Header{s.left(0)}, translated(pieceHeaders(headers), end{}, s.backendEnd(), 1)...)...)
	return r.forwarded(reason, s.testService, 0, out[at])
}

// pieceHeaders are those that pieces() cuts.
func pieceHeaders(headers []packet.Header) []packet.Header {
	if four, is4 := headers[0].(packet.IPv4Header); is4 {
		four.DF = false
		return append([]packet.Header{four}, headers[1:]...)
	}
	return headers
}

func fragmentID(frame []byte) uint32 {
	if frame[14]>>4 == 4 {
		return uint32(binary.BigEndian.Uint16(frame[18:]))
	}
	return binary.BigEndian.Uint32(frame[58:])
}

func fragmentOffset(frame []byte) int {
	if frame[14]>>4 == 4 {
		return int(binary.BigEndian.Uint16(frame[20:])&0x1fff) * 8
	}
	return int(binary.BigEndian.Uint16(frame[56:]) &^ 7)
}

// groupAwayRows: every fragment is another director's.
func (s scenario) groupAwayRows(id uint32) []row {
	in, sent := pieces(id, s.data(600)...), pieces(id, withTrips(s.data(600), 0)...)
	away := func(name string, i int) row {
		return row{name: name, in: in[i]}.answered(abi.ReasonFORWARD_FRAGMENT_OWNER, between(peerMAC(groupPeer), ownMAC, groupMeet, sent[i]))
	}
	tag := packet.VLANTag{Priority: 5, Type: binary.BigEndian.Uint16(in[1][12:])}
	tagged := away("with a priority tag", 1)
	tagged.in = packet.Build(arrived, tag, packet.Bytes(in[1][14:]))
	tag.Type = groupMeet
	tagged.out = packet.Build(packet.EthernetHeader{Dst: peerMAC(groupPeer), Src: ownMAC}, tag, packet.Bytes(sent[1][14:]))
	elsewhere := pieces(id+1, ip(s.client, vipAddress(s.vip.Is4(), 0xfff)), l4(s.protocol, clientPort, servicePort), packet.Zeros(600))
	return []row{
		away("first goes to its owner", 0), away("second goes to its owner", 1), away("last goes to its owner", 2), tagged,
		s.forward("whole packet", s.flow(), 0, s.data(600)...),
		row{name: "first, no VIP", in: elsewhere[0]}.passed(abi.ReasonPASS_NO_SERVICE),
		row{name: "later, no VIP", in: elsewhere[1]}.passed(abi.ReasonPASS_NO_SERVICE),
	}
}

// groupOwnRows: every fragment is this director's.
func (s scenario) groupOwnRows(id uint32) []row {
	known, unknown, waits := pieces(id, s.data(600)...), pieces(id+1, s.data(600)...), pieces(id+1, withTrips(s.data(600), 1)...)
	return []row{
		s.fragment("own first", known[0], s.data(600)),
		s.fragment("own second", known[1], s.data(600)),
		row{name: "own later, before its first", in: unknown[2]}.answered(abi.ReasonFORWARD_FRAGMENT_WAITS,
			between(peerMAC(groupSecond), ownMAC, groupMeet, waits[2])),
		s.fragment("own first, after a later one", unknown[0], s.data(600)),
		s.fragment("the later one", unknown[2], s.data(600)),
	}
}

// groupArrivedRows are fragments that another director has sent.
func (s scenario) groupArrivedRows(id uint32) (rows []row) {
	all := func(id uint32, trips uint8) [][]byte { return pieces(id, withTrips(s.data(600), trips)...) }
	arrive := func(name string, etherType uint16, from int, frame []byte) row {
		bytes := ipLength(frame)
		return row{name: name, in: between(ownMAC, peerMAC(from), etherType, frame), bytes: &bytes}
	}
	// meets is sent on to the director that has the first fragment.
	meets := func(name string, from int, id uint32, i int, to [6]byte) row {
		return arrive(name, groupMeet, from, all(id, 0)[i]).answered(abi.ReasonFORWARD_FRAGMENT_MET, between(to, ownMAC, groupTake, all(id, 0)[i]))
	}
	taken := func(name string, etherType uint16, id uint32, i int, trips uint8) row {
		r := s.fragment(name, all(id, 0)[i], withTrips(s.data(600), 0))
		arrived := arrive(name, etherType, groupPeer, all(id, trips)[i])
		r.in, r.bytes = arrived.in, arrived.bytes
		return r
	}
	waits := func(name string, id uint32, trips uint8) row {
		return arrive(name, groupMeet, groupPeer, all(id, trips)[1]).answered(abi.ReasonFORWARD_FRAGMENT_WAITS,
			between(peerMAC(groupPeer), ownMAC, groupMeet, all(id, trips+1)[1]))
	}
	rows = append(rows,
		meets("first goes back", groupPeer, id, 0, peerMAC(groupPeer)),
		meets("later goes to the director of the first", groupSecond, id, 1, peerMAC(groupPeer)),
		meets("later goes back", groupPeer, id, 2, peerMAC(groupPeer)),
		row{name: "later from the router goes to the director of the first", in: pieces(id, s.data(600)...)[2]}.
			answered(abi.ReasonFORWARD_FRAGMENT_MET, between(peerMAC(groupPeer), ownMAC, groupTake, all(id, 0)[2])),
		arrive("later, taken but unknown", groupTake, groupPeer, all(id, 0)[1]).dropped(abi.ReasonDROP_FRAGMENT_UNKNOWN, nil),
		taken("first, taken", groupTake, id+1, 0, 0), taken("later, taken", groupTake, id+1, 2, 0),
		taken("later, at its owner that has the first", groupMeet, id+1, 1, 6))
	for trips := range uint8(6) {
		rows = append(rows, waits(fmt.Sprintf("before its first, trip %d", trips), id+2, trips))
	}
	rows = append(rows, arrive("before its first, the last time", groupMeet, groupPeer, all(id+2, 6)[1]).dropped(abi.ReasonDROP_FRAGMENT_UNKNOWN, nil),
		arrive("sent more often than any", groupMeet, groupPeer, all(id+1, 7)[1]).dropped(abi.ReasonDROP_FRAGMENT_ASTRAY, nil),
		waits("waits here, though its first is here", id+1, 1), waits("waits here for the last time", id+1, 5))
	if s.backends[0].mode != model.NAT { // which would answer that its TTL is over
		low := append([]packet.Header{withTTL(s.data(600)[0], 1)}, s.data(600)[1:]...)
		r := s.fragment("few hops left", pieces(id+3, low...)[0], low)
		arrived := arrive("", groupTake, groupPeer, pieces(id+3, append([]packet.Header{withTTL(low[0], 7)}, low[1:]...)...)[0])
		r.in, r.bytes = arrived.in, arrived.bytes
		rows = append(rows, r)
	}
	return append(rows, s.groupAstrayRows(id+4)...)
}

// groupAstrayRows are frames that are none of the group's business.
func (s scenario) groupAstrayRows(id uint32) []row {
	whole, none := build(s.data(0)...), uint64(0)
	length := ipLength(whole)
	ping := pieces(id, withTrips(echo(s.vip.Is4(), true, ip(s.client, s.vip), 600), 0)...)
	pinged := ipLength(ping[0])
	restored := packet.Build(packet.EthernetHeader{Dst: ownMAC, Src: peerMAC(groupPeer), Type: binary.BigEndian.Uint16(ping[0][12:])}, packet.Bytes(ping[0][14:]))
	stranger := between(ownMAC, clientMAC, groupTake, pieces(id, s.data(600)...)[0])
	flooded := between(peerMAC(groupSecond), peerMAC(groupPeer), groupMeet, pieces(id, s.data(600)...)[0])
	arp := packet.Build(packet.EthernetHeader{Dst: ownMAC, Src: peerMAC(groupPeer), Type: packet.EtherTypeARP}, packet.Zeros(46))
	return []row{
		row{name: "a whole packet", in: between(ownMAC, peerMAC(groupPeer), groupTake, whole), bytes: &length}.dropped(abi.ReasonDROP_FRAGMENT_ASTRAY, nil),
		{name: "first of an echo, taken", in: between(ownMAC, peerMAC(groupPeer), groupTake, ping[0]), bytes: &pinged,
			reason: abi.ReasonPASS_NO_SERVICE, action: xdpPass, out: restored},
		{name: "for another director, flooded", in: flooded, reason: abi.ReasonPASS_NOT_IP, action: xdpPass, bytes: &none},
		{name: "from nobody of the group", in: stranger, reason: abi.ReasonPASS_NOT_IP, action: xdpPass, bytes: &none},
		{name: "from a director, and not IP", in: arp, reason: abi.ReasonPASS_NOT_IP, action: xdpPass, bytes: &none},
	}
}

// Directors on other links: one that is narrow, and one by another interface.
func testGroupLinks(t *testing.T) {
	w := groupWorld()
	scenarios := w.scenarios(func(way wayTo) bool { return way.mode == model.L2DSR })
	d := loadTestDirector(t, w)
	for i, s := range scenarios {
		id := uint32(i * 10)
		in, sent := pieces(id, s.data(600)...), pieces(id, withTrips(s.data(600), 0)...)
		d.putGroup(t, groupBeside, groupSelf)
		beside := row{name: s.name + ", another link", in: in[0]}.answered(abi.ReasonFORWARD_FRAGMENT_OWNER, between(peerMAC(groupBeside), ownMAC, groupMeet, sent[0]))
		beside.action = xdpRedirect
		d.check(t, []row{beside})
		d.putGroup(t, groupNarrow, groupSelf)
		big := packet.Fragments(id, 1400, append([]packet.Header{arrived}, pieceHeaders(s.data(2000))...)...)[0]
		d.check(t, []row{row{name: s.name + ", a narrow link", in: big, late: func(t *testing.T, out []byte) []byte {
			if mtu := s.answeredMTU(out); mtu != 200 {
				t.Errorf("the answer says that %d bytes fit, want 200", mtu)
			}
			return out
		}}.answered(abi.ReasonANSWER_TOO_BIG, nil)})
	}
}

// answeredMTU is what an ICMP error says would fit.
func (s scenario) answeredMTU(frame []byte) int {
	if s.vip.Is4() {
		return int(binary.BigEndian.Uint16(frame[14+20+6:]))
	}
	return int(binary.BigEndian.Uint32(frame[14+40+4:]))
}

// No more later fragments wait than may.
func testGroupWaitRate(t *testing.T) {
	w := groupWorld()
	w.settings.WaitRate = 0
	scenarios := w.scenarios(func(way wayTo) bool { return way.mode == model.GUE })
	d := loadTestDirector(t, w)
	d.putGroup(t, groupSelf, groupSecond)
	for i, s := range scenarios {
		frame := pieces(uint32(i), withTrips(s.data(600), 2)...)[1]
		bytes := ipLength(frame)
		d.check(t, []row{
			row{name: s.name + ", here", in: pieces(uint32(i), s.data(600)...)[1]}.dropped(abi.ReasonDROP_FRAGMENT_UNKNOWN, nil),
			row{name: s.name + ", from a director", in: between(ownMAC, peerMAC(groupPeer), groupMeet, frame), bytes: &bytes}.dropped(abi.ReasonDROP_FRAGMENT_UNKNOWN, nil),
		})
	}
}

// twinGroupSlot is the slot of a fragment, written a second time from
// docs/internals/datapath.md.
func twinGroupSlot(segment uint32, source, destination netip.Addr, id uint32, protocol uint8) uint32 {
	mix := func(hash, word uint64) uint64 {
		hash = (hash ^ word) * 0x9e3779b97f4a7c15
		return hash ^ hash>>32
	}
	var hash uint64
	if source.Is4() {
		s, d := source.As4(), destination.As4()
		hash = mix(hash, uint64(binary.BigEndian.Uint32(s[:]))<<32|uint64(binary.BigEndian.Uint32(d[:])))
	} else {
		s, d := source.As16(), destination.As16()
		for half := range 2 {
			hash = mix(hash, binary.BigEndian.Uint64(s[8*half:]))
			hash = mix(hash, binary.BigEndian.Uint64(d[8*half:]))
		}
	}
	hash = (hash ^ (uint64(id)<<32 | uint64(segment^uint32(protocol)<<26))) * 0xbb67ae8584caa73b
	hash ^= hash >> 29
	hash *= 0x3c6ef372fe94f82b
	hash ^= hash >> 32
	return uint32(hash >> 32 * groupSlots >> 32)
}

// Every director finds the same owner for all fragments of a packet: the program and
// its twin agree about the slot, for any client and ID, whichever fragment it is.
func testGroupTwin(t *testing.T) {
	w := groupWorld()
	scenarios := w.scenarios(func(way wayTo) bool { return way.mode == model.L2DSR })
	d := loadTestDirector(t, w)
	d.putGroup(t, groupPeer, groupSelf)
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[uint32]bool{}
	for n := range 200 {
		s := scenarios[n%len(scenarios)]
		id := r.Uint32()
		if s.vip.Is4() {
			id &= 0xffff
			s.client = netip.AddrFrom4([4]byte{198, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
		} else {
			a := client6.As16()
			binary.BigEndian.PutUint64(a[8:], r.Uint64())
			s.client = netip.AddrFrom16(a)
		}
		// The ID as a number of four bytes, the first of them lowest (IPv4: of two).
		wire := binary.BigEndian.AppendUint32(nil, id)
		number := binary.LittleEndian.Uint32(wire)
		if s.vip.Is4() {
			number = uint32(binary.LittleEndian.Uint16(wire[2:]))
		}
		slot := twinGroupSlot(0, s.client, s.vip, number, uint8(s.protocol))
		seen[slot] = true
		d.put(t, "group_slots", slot, abi.GroupSlot{Owner: groupSecond})
		for _, frame := range pieces(id, s.data(600)...) {
			if _, out := d.run(t, frame, 0); [6]byte(out[:6]) != peerMAC(groupSecond) {
				t.Fatalf("a fragment from %s with ID %#x is not of slot %d: it went to %x", s.client, id, slot, out[:6])
			}
		}
		d.put(t, "group_slots", slot, abi.GroupSlot{Owner: groupPeer})
	}
	if len(seen) < 100 {
		t.Errorf("200 packets have %d of 256 slots", len(seen))
	}
}

// Directors ask for each other, and only the program answers.
func testGroupProbes(t *testing.T) {
	d := loadTestDirector(t, groupWorld())
	d.putGroup(t, groupSelf, groupSelf)
	asker := packet.EthernetHeader{Dst: ownMAC, Src: peerMAC(groupPeer)}
	for _, is4 := range []bool{true, false} {
		from, own := numbered(is4, 8, 2), numbered(is4, 8, 1)
		probe := func(link packet.EthernetHeader, port uint16, payload []byte) []byte {
			return packet.Build(link, ip(from, own), packet.UDPHeader{Src: clientPort, Dst: port}, packet.Bytes(payload))
		}
		answer := packet.Build(packet.EthernetHeader{Dst: peerMAC(groupPeer), Src: ownMAC}, withTTL(ip(own, from), 64),
			packet.UDPHeader{Src: probePort, Dst: clientPort, NoChecksum: is4}, packet.Bytes(question(42, 7)))
		if is4 { // turned in place: what else the header says stays
			four := ip(own, from).(packet.IPv4Header)
			four.TTL = 64
			answer = packet.Build(packet.EthernetHeader{Dst: peerMAC(groupPeer), Src: ownMAC}, four,
				packet.UDPHeader{Src: probePort, Dst: clientPort, NoChecksum: true}, packet.Bytes(question(42, 7)))
		}
		other := append([]byte{}, question(42, 7)...)
		other[7]++
		d.check(t, []row{
			row{name: "probe", in: probe(asker, probePort, question(42, 7))}.answered(abi.ReasonANSWER_PROBE, answer),
			row{name: "probe of another director, flooded", in: probe(packet.EthernetHeader{Dst: peerMAC(groupSecond), Src: peerMAC(groupPeer)}, probePort, question(42, 7))}.passed(abi.ReasonPASS_NO_SERVICE),
			row{name: "probe of a stranger", in: probe(arrived, probePort, question(42, 7))}.passed(abi.ReasonPASS_NO_SERVICE),
			row{name: "to another port", in: probe(asker, probePort+1, question(42, 7))}.passed(abi.ReasonPASS_NO_SERVICE),
			row{name: "not a probe", in: probe(asker, probePort, other)}.passed(abi.ReasonPASS_NO_SERVICE),
			row{name: "cut short", in: probe(asker, probePort, question(42, 7)[:7])}.passed(abi.ReasonPASS_NO_SERVICE),
		})
	}
}
