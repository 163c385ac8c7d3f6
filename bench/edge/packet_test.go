package edge

import (
	"testing"

	"weir.io/weir/lab/packet"
)

func TestRead(t *testing.T) {
	director, backend := mac{2, 0, 0, 0, 0, 1}, mac{2, 0, 0, 0, 0, 2}
	ethernet := packet.EthernetHeader{Src: director, Dst: backend}
	outer := []packet.Header{ethernet, packet.IPv4Header{Src: address(directorNumber), Dst: address(backendNumber)}}
	request := packet.IPv4Header{Src: clientAddress, Dst: vip}
	begin := packet.TCPHeader{Src: 5000, Dst: port, Flags: packet.SYN}
	gue := append(outer, packet.UDPHeader{Src: 50000, Dst: guePort}, packet.GUEHeader{Private: make([]byte, 12)}, request, begin)
	whole := packet.Build(gue...)
	for _, test := range []struct {
		name  string
		frame []byte
		want  *packetOf
	}{
		{"alone", packet.Build(ethernet, request, begin), &packetOf{client: 5000, kind: "S", begins: true}},
		{"in GUE, with a row", whole, &packetOf{client: 5000, kind: "S", begins: true}},
		{"a reply", packet.Build(ethernet, packet.IPv4Header{Src: vip, Dst: clientAddress}, packet.TCPHeader{Src: port, Dst: 5000, Flags: packet.SYN | packet.ACK}),
			&packetOf{client: 5000, kind: "S.", reply: true}},
		{"a reset", packet.Build(ethernet, request, packet.TCPHeader{Src: 5000, Dst: port, Flags: packet.RST}), &packetOf{client: 5000, kind: "R"}},
		{"with the beginning of its payload", append(packet.Build(ethernet, request, packet.TCPHeader{Src: 5000, Dst: port, Flags: packet.FIN | packet.ACK}), 1, 2, 3),
			&packetOf{client: 5000, kind: "F."}},
		{"a probe of the director's", packet.Build(ethernet, packet.IPv4Header{Src: address(directorNumber), Dst: vip}, begin), nil},
		{"UDP to another port", packet.Build(append(outer, packet.UDPHeader{Src: 50000, Dst: guePort + 1}, packet.GUEHeader{}, request, begin)...), nil},
		{"IPv6", packet.Build(packet.EthernetHeader{Src: director, Dst: backend, Type: 0x86dd}, request, begin), nil},
		{"cut behind UDP", whole[:14+20+8], nil},
		{"cut in the row", whole[:14+20+8+8], nil},
		{"cut in TCP", whole[:len(whole)-1], nil},
		{"nothing", nil, nil},
	} {
		p, is := read(test.frame)
		if is != (test.want != nil) {
			t.Errorf("%s: it is taken for a client's packet: %t", test.name, is)
			continue
		}
		if !is {
			continue
		}
		if got := (packetOf{p.client, p.reply, p.kind(), p.opens()}); got != *test.want || p.from != director || p.to != backend {
			t.Errorf("%s: read as %+v from %x to %x, want %+v", test.name, got, p.from, p.to, *test.want)
		}
	}
}

// packetOf is what read finds.
type packetOf struct {
	client uint16
	reply  bool
	kind   string
	begins bool
}
