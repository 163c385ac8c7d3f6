package datapath

import (
	"encoding/binary"
	"fmt"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// Later fragments follow the first one, which alone has ports.
func testFragments(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(notNAT)
	d := loadTestDirector(t, w)
	for i, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { d.check(t, s.fragmentRows(uint32(100*i))) })
	}
}

// pieces are the fragments of a packet with 600 bytes of payload, 256 bytes each.
func pieces(id uint32, headers ...packet.Header) [][]byte {
	if four, is4 := headers[0].(packet.IPv4Header); is4 {
		four.DF = false
		headers[0] = four
	}
	return packet.Fragments(id, 256, append([]packet.Header{arrived}, headers...)...)
}

func (s scenario) fragmentRows(id uint32) []row {
	// follows is the row of a fragment, sent after those before it.
	follows := func(name string, reason abi.Reason, frame []byte, before ...[]byte) row {
		inner := packet.Bytes(frame[14:])
		r := row{name: name, in: frame, before: before}
		return r.forwarded(reason, s.testService, 0, s.leaves(s.flow(), 0, inner))
	}
	forward := s.forward("", s.flow(), 0, s.data(0)...).reason
	one, two, three := pieces(id+1, s.data(600)...), pieces(id+2, s.data(600)...), pieces(id+3, s.data(600)...)
	unknown := row{name: "later without first", in: two[1]}.dropped(abi.ReasonDROP_FRAGMENT_UNKNOWN, nil)
	otherID := row{name: "later of another packet", in: two[2], before: one[:1]}.dropped(abi.ReasonDROP_FRAGMENT_UNKNOWN, nil)
	foreign := pieces(id+4, ip(s.client, vipAddress(s.vip.Is4(), 0xfff)), l4(s.protocol, clientPort, servicePort), packet.Zeros(600))
	elsewhere := row{name: "later, no VIP", in: foreign[1]}.passed(abi.ReasonPASS_NO_SERVICE)
	tagged := row{name: "later in another segment", before: one[:1],
		in: append(append(packet.Build(packet.EthernetHeader{Dst: ownMAC, Src: clientMAC, Type: packet.EtherTypeVLAN}), 0, 7), one[1][12:]...)}
	closed := pieces(id+5, ip(s.client, s.vip), l4(s.protocol, clientPort, otherPort), packet.Zeros(600))
	rows := []row{
		follows("first", forward, one[0]),
		follows("second", abi.ReasonFORWARD_FRAGMENT, one[1]),
		follows("last", abi.ReasonFORWARD_FRAGMENT, one[2]),
		unknown, otherID, elsewhere,
		tagged.passed(abi.ReasonPASS_NO_SERVICE),
		follows("last before second", abi.ReasonFORWARD_FRAGMENT, three[2], three[0]),
		row{name: "first to no service", in: closed[0]}.passed(abi.ReasonPASS_NO_SERVICE),
		row{name: "later to no service", in: closed[1]}.passed(abi.ReasonPASS_NO_SERVICE),
	}
	return append(rows, s.pingRows(id+6)...)
}

// pingRows are a fragmented echo request: each piece is answered, in any order after the first.
func (s scenario) pingRows(id uint32) []row {
	is4 := s.vip.Is4()
	ping := pieces(id, echo(is4, true, ip(s.client, s.vip), 600)...)
	back := withTTL(ip(s.vip, s.client), 64)
	if four, is := back.(packet.IPv4Header); is {
		four.DF = false
		back = four
	}
	answer := packet.Fragments(id, 256, append([]packet.Header{packet.EthernetHeader{Dst: clientMAC, Src: ownMAC}}, echo(is4, false, back, 600)...)...)
	rows := []row{row{name: "later of an echo, before its first", in: ping[1]}.dropped(abi.ReasonDROP_FRAGMENT_UNKNOWN, nil)}
	for _, i := range []int{0, 2, 1} {
		rows = append(rows, row{name: fmt.Sprintf("piece %d of an echo", i), in: ping[i]}.answered(abi.ReasonANSWER_ECHO, answer[i]))
	}
	e := icmpErrors(is4)[0]
	split := pieces(id+1000, s.router(), e.header, packet.Quote(1000, s.reply(servicePort)...), packet.Zeros(600))
	return append(rows, row{name: "first of an error", in: split[0]}.passed(abi.ReasonPASS_NO_SERVICE))
}

// An entry is good for as long as a receiver waits, not longer.
func testFragmentEntryExpires(t *testing.T) {
	w := &testWorld{}
	s := scenario{testService: w.add(testService{vip: vipAddress(true, 1), protocol: model.UDP, port: singlePort(servicePort),
		backends: []testBackend{{}}}), client: client4}
	d := loadTestDirector(t, w)
	frames := pieces(5, s.data(600)...)
	d.check(t, []row{
		{name: "first", in: frames[0], reason: abi.ReasonFORWARD_L2DSR, action: xdpTX, backend: 1, out: s.leaves(s.flow(), 0, packet.Bytes(frames[0][14:]))},
	})
	var key abi.FragmentKey
	var value abi.Fragment
	if !d.Maps["fragments"].Iterate().Next(&key, &value) {
		t.Fatal("the first fragment left no entry")
	}
	if got := binary.BigEndian.Uint32(key.Source.Bytes[:4]); got != binary.BigEndian.Uint32(client4.AsSlice()) {
		t.Errorf("entry is of source %#x", got)
	}
	reused := s.abiBackend(0)
	reused.Epoch++
	d.put(t, "backends", s.first, reused)
	d.check(t, []row{row{name: "later, its backend's index is another's", in: frames[1]}.dropped(abi.ReasonDROP_FRAGMENT_UNKNOWN, nil)})
	d.put(t, "backends", s.first, s.abiBackend(0))
	value.Expires = 1
	d.put(t, "fragments", key, value)
	d.check(t, []row{row{name: "later, after the entry's time", in: frames[1]}.dropped(abi.ReasonDROP_FRAGMENT_UNKNOWN, nil)})
}
