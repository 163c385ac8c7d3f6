package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// A UDP checksum that comes out as zero is written as all ones, because zero
// says that there is none (RFC 768). That is one packet in 65,536: these rows
// look for it, in what weir must send.
func testZeroChecksums(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(func(way wayTo) bool { return way.mode == model.GUE && !way.over4 || isPlainNAT(way) })
	d := loadTestDirector(t, w)
	d.put(t, "egress", wireNumber, wireNumber)
	for _, s := range scenarios {
		if s.backends[0].mode == model.NAT && s.protocol == model.TCP || s.protocol == model.SCTP { // whose sum is not this one
			continue
		}
		d.check(t, []row{s.zeroRow(t)})
	}
}

// zeroRow is the first packet, by the client's port and its payload, that leaves
// with a UDP checksum of all ones in the outermost UDP header.
func (s scenario) zeroRow(t *testing.T) row {
	t.Helper()
	at := 14 + 40 + 6
	if s.backends[0].address.Is4() {
		at = 14 + 20 + 6
	}
	client, label := s.client.AsSlice(), uint32(0)
	for try := range 1 << 20 {
		// Tunnels from one address have only the port that differs: not every client has such a packet.
		if try%(1<<16) == 0 && try > 0 {
			client[len(client)-2] += 16
			s.client, _ = netip.AddrFromSlice(client)
			label += 1 << 12
		}
		f := s.flow()
		f.SourcePort = uint16(1024 + try%50000)
		payload := binary.BigEndian.AppendUint16(nil, uint16(try/16))
		headers := []packet.Header{ip(s.client, s.vip), l4(s.protocol, f.SourcePort, servicePort), packet.Bytes(append(payload, make([]byte, try%7)...))}
		if six, is := headers[0].(packet.IPv6Header); is {
			six.FlowLabel = label
			headers[0] = six
		}
		if bytes.Equal(s.leaves(f, 0, headers...)[at:at+2], []byte{0xff, 0xff}) {
			return s.forward(fmt.Sprintf("%s, port %d", s.name, f.SourcePort), f, 0, headers...)
		}
	}
	t.Fatalf("%s: no packet has a checksum of zero", s.name)
	return row{}
}

// testArrivingChecksums: whichever of its two forms a checksum of zero arrives in, and whatever
// becomes of it, what leaves in nat is as if it were computed anew.
func testArrivingChecksums(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isPlainNAT)
	d := loadTestDirector(t, w)
	d.put(t, "egress", wireNumber, wireNumber)
	for _, s := range scenarios {
		if s.protocol == model.SCTP {
			continue // its checksum has one form
		}
		t.Run(s.name, func(t *testing.T) { d.check(t, s.edgeRows(t)) })
	}
}

// edgeRows are packets that arrive, or leave, with checksums from 0xfffd to 0x0002, and those of
// which only headers are not zero.
func (s scenario) edgeRows(t *testing.T) (rows []row) {
	t.Helper()
	at := 14 + 20
	if !s.vip.Is4() {
		at = 14 + 40
	}
	at += map[model.Protocol]int{model.TCP: 16, model.UDP: 6}[s.protocol]
	sums := map[[2]uint16]bool{}
	for try := range 1 << 16 {
		headers := []packet.Header{ip(s.client, s.vip), l4(s.protocol, clientPort, servicePort), packet.Bytes(binary.BigEndian.AppendUint16(nil, uint16(try)))}
		in, out := build(headers...), s.forward("", s.flow(), 0, headers...).out
		arrives, leaves := binary.BigEndian.Uint16(in[at:]), binary.BigEndian.Uint16(out[at:])
		if near := arrives+3 < 6 || leaves+3 < 6 || try == 0 || try == 0xffff; near && !sums[[2]uint16{arrives, leaves}] {
			sums[[2]uint16{arrives, leaves}] = true
			rows = append(rows, s.forward(fmt.Sprintf("%#04x becomes %#04x", arrives, leaves), s.flow(), 0, headers...))
		}
	}
	if len(rows) < 10 {
		t.Errorf("%d packets are near the edge, want more", len(rows))
	}
	return rows
}
