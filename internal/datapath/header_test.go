package datapath

import (
	"fmt"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// Header chains that are no mistake, but more than the director follows; and
// what Ethernet and jumbo frames put around and behind the headers.
func testHeaders(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(notNAT)
	d := loadTestDirector(t, w)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			d.check(t, s.paddingRows())
			if s.vip.Is6() {
				d.check(t, s.chainRows())
			}
		})
	}
}

func (s scenario) chainRows() (rows []row) {
	unsupported := func(name string, headers ...packet.Header) {
		headers = append([]packet.Header{ip(s.client, s.vip)}, headers...)
		rows = append(rows, row{name: name, in: build(headers...)}.passed(abi.ReasonPASS_UNSUPPORTED))
	}
	from := l4(s.protocol, clientPort, servicePort)
	options := packet.ExtensionHeader{Kind: packet.DestOptions}
	chain := []packet.Header{options, options, options, options, options, options}
	six := append([]packet.Header{ip(s.client, s.vip)}, chain...)
	rows = append(rows, s.forward("six extension headers", s.flow(), 0, append(six, from, packet.Text("x"))...))
	unsupported("seven extension headers", append(chain, options, from)...)
	unsupported("mobility header", packet.ExtensionHeader{Kind: 135, Data: make([]byte, 6)}, from)
	for _, left := range []byte{1, 2} {
		via := append([]byte{4, left, 0, 0, 0, 0}, s.client.AsSlice()...)
		unsupported(fmt.Sprintf("routing, %d segments left", left), packet.ExtensionHeader{Kind: packet.Routing, Data: via}, from)
	}
	fragment := uint8(packet.Fragment)
	cut := ip(s.client, s.vip).(packet.IPv6Header)
	cut.Next = &fragment
	behind := packet.Build(packet.FragmentHeader{Offset: 8, Next: uint8(s.protocol)}, packet.Zeros(30))
	empty := s.malformed("fragment header behind the packet", cut)
	empty.in = append(empty.in, behind...)
	long := s.malformed("extension header longer than the packet", ip(s.client, s.vip), options, from, packet.Zeros(40))
	long.in[14+40+1] = 255
	far := s.malformed("authentication header longer than the packet", ip(s.client, s.vip), packet.AuthHeader{}, from, packet.Zeros(40))
	far.in[14+40+1] = 255
	return append(rows, empty, long, far)
}

// Bytes behind the packet's end are no part of it; a jumbo packet is.
func (s scenario) paddingRows() (rows []row) {
	small := s.forward("Ethernet padding", s.flow(), 0, s.data(0)...)
	padding := []byte{1, 2, 3, 4, 5, 6}
	small.in = append(small.in, padding...)
	small.out = append(small.out, padding...)
	return append(rows, small)
}

// Jumbo frames come in several buffers, of which the program sees the first.
func testJumboFrames(t *testing.T) {
	w := &testWorld{}
	var rows []row
	for _, way := range ways {
		if isNAT(way) {
			continue
		}
		for _, is4 := range []bool{true, false} {
			backend := testBackend{mode: way.mode, address: backendAddress(way.over4 || way.sameProto && is4, len(w.services)), mtu: 9000}
			s := scenario{client: clientOf(is4), testService: w.add(testService{vip: vipAddress(is4, len(w.services)), protocol: model.TCP,
				port: singlePort(servicePort), backends: []testBackend{backend}})}
			for _, size := range []int{3500, 4096, 8900, 9000} {
				rows = append(rows, s.forward(fmt.Sprintf("%s, %v, %d bytes", way.name, s.vip, size), s.flow(), 0, s.sized(size)...))
			}
		}
	}
	loadTestDirector(t, w).check(t, rows)
}
