package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/lab/packet"
)

// What testConfig's services may offer: the uplink's 1500 bytes without outer
// header (20 or 40), UDP (8), GUE (4), the longest list of candidates (4 + 7 x 4 or
// 4 + 5 x 16), the inner IP header (20 or 40) and TCP's (20).
const (
	webMSS4   = 1500 - 20 - 8 - 4 - 32 - 20 - 20
	webMSS6   = 1500 - 40 - 8 - 4 - 84 - 40 - 20
	rangeMSS4 = 1500 - 20 - 20 - 20
	plainMSS6 = 1500 - 40 - 20
)

// egressRow is a packet that leaves. The packet that comes out differs only in its MSS.
type egressRow struct {
	name   string
	link   frame
	src    netip.Addr
	port   uint16
	flags  uint8
	zero   bool   // the sequence number
	before []byte // options in front of MSS
	mss    uint16 // 0: no such option
	after  []byte // options behind it
	reason bpfHostReason
	want   uint16 // MSS
}

func (r egressRow) build(mss uint16) []byte {
	options := slices.Clone(r.before)
	if mss != 0 {
		options = append(options, 2, 4, byte(mss>>8), byte(mss))
	}
	options = append(options, r.after...)
	for len(options)%4 != 0 {
		options = append(options, 0)
	}
	client := client4
	if r.src.Is6() {
		client = client6
	}
	link := r.link
	if link == nil {
		link = frame{ether}
	}
	sequence := uint32(0xfeedbeef)
	if r.zero {
		sequence = 0
	}
	return build(link, frame{ip(r.src, client), packet.TCPHeader{
		Src: r.port, Dst: 33000, Seq: sequence, Ack: 7, Flags: r.flags, Window: 65535, Options: options}})
}

func egressRows() []egressRow {
	const (
		synAck  = packet.SYN | packet.ACK
		nop     = 1
		lowered = bpfHostReasonHOST_CLAMP_LOWERED
		fits    = bpfHostReasonHOST_CLAMP_FITS
		absent  = bpfHostReasonHOST_CLAMP_ABSENT
		others  = bpfHostReasonHOST_PASS_EGRESS
		refused = bpfHostReasonHOST_PASS_REFUSED
		reset   = packet.RST | packet.ACK
	)
	linux := []byte{4, 2, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, nop, 3, 3, 7} // SACK, timestamps, window scale
	rows := []egressRow{
		{name: "SYN-ACK", src: vip4, port: 443, flags: synAck, mss: 1460, after: linux, reason: lowered, want: webMSS4},
		{name: "SYN-ACK over IPv6", src: vip6, port: 443, flags: synAck, mss: 1440, after: linux, reason: lowered, want: webMSS6},
		{name: "SYN of the VIP", src: vip4, port: 443, flags: packet.SYN, mss: 1460, reason: lowered, want: webMSS4},
		{name: "SYN-ACK with ECE", src: vip4, port: 443, flags: synAck | packet.ECE, mss: 1460, reason: lowered, want: webMSS4},
		{name: "one byte too much", src: vip4, port: 443, flags: synAck, mss: webMSS4 + 1, reason: lowered, want: webMSS4},
		{name: "just right", src: vip4, port: 443, flags: synAck, mss: webMSS4, reason: fits, want: webMSS4},
		{name: "smaller", src: vip4, port: 443, flags: synAck, mss: 536, reason: fits, want: 536},
		{name: "largest", src: vip6, port: 443, flags: synAck, mss: 65535, reason: lowered, want: webMSS6},
		{name: "IPIP", src: rangeVIP4, port: 8050, flags: synAck, mss: 1460, reason: lowered, want: rangeMSS4},
		{name: "l2dsr needs no room", src: rangeVIP6, port: 22, flags: synAck, mss: plainMSS6, reason: fits, want: plainMSS6},
		{name: "l2dsr on a jumbo offer", src: rangeVIP6, port: 22, flags: synAck, mss: 8940, reason: lowered, want: plainMSS6},
		{name: "tag", link: frame{ether, packet.VLANTag{ID: 7}}, src: vip4, port: 443, flags: synAck, mss: 1460, reason: lowered, want: webMSS4},
		{name: "last option", src: vip4, port: 443, flags: synAck, before: append(slices.Clone(linux), slices.Repeat([]byte{nop}, 20)...), mss: 1460, reason: lowered, want: webMSS4},

		{name: "no options", src: vip4, port: 443, flags: synAck, reason: absent},
		{name: "no MSS", src: vip4, port: 443, flags: synAck, after: linux, reason: absent},
		{name: "MSS behind the end", src: vip4, port: 443, flags: synAck, before: []byte{0, 0, 0, 0}, mss: 1460, reason: absent, want: 1460},
		{name: "MSS of length 3", src: vip4, port: 443, flags: synAck, before: []byte{2, 3, 5}, mss: 1460, reason: absent, want: 1460},
		{name: "option of length 0", src: vip4, port: 443, flags: synAck, before: []byte{8, 0}, mss: 1460, reason: absent, want: 1460},
		{name: "option of length 1", src: vip4, port: 443, flags: synAck, before: []byte{8, 1}, mss: 1460, reason: absent, want: 1460},
		{name: "option beyond the header", src: vip4, port: 443, flags: synAck, before: []byte{8, 200}, mss: 1460, reason: absent, want: 1460},
		{name: "MSS cut short", src: vip4, port: 443, flags: synAck, before: []byte{nop, nop, 2, 4}, reason: absent},

		{name: "segment", src: vip4, port: 443, flags: packet.ACK, mss: 1460, reason: others, want: 1460},
		{name: "RST", src: vip4, port: 443, flags: reset, mss: 1460, reason: others, want: 1460},
		{name: "refusal", src: vip4, port: 443, flags: reset, zero: true, reason: refused},
		{name: "refusal over IPv6", src: vip6, port: 443, flags: reset, zero: true, reason: refused},
		{name: "refusal of one of many ports", src: rangeVIP4, port: 8050, flags: reset, zero: true, reason: refused},
		{name: "RST that answers an ACK with number 0", src: vip4, port: 443, flags: packet.RST, zero: true, reason: others},
		{name: "ACK with number 0", src: vip4, port: 443, flags: packet.ACK, zero: true, reason: others},
		{name: "refusal at another port of the VIP", src: vip4, port: 22, flags: reset, zero: true, reason: others},
		{name: "refusal of another address", src: host4, port: 443, flags: reset, zero: true, reason: others},
		{name: "other port of the VIP", src: vip4, port: 22, flags: synAck, mss: 1460, reason: others, want: 1460},
		{name: "another address", src: host4, port: 443, flags: synAck, mss: 1460, reason: others, want: 1460},
		{name: "another address of IPv6", src: host6, port: 443, flags: synAck, mss: 1440, reason: others, want: 1440},
	}
	// In front of an MSS option at an odd offset its value lies across two words.
	for n := range 8 {
		for _, src := range []netip.Addr{vip4, vip6} {
			row := egressRow{name: fmt.Sprintf("%d bytes in front, %v", n, src), src: src, port: 443, flags: synAck,
				before: slices.Repeat([]byte{nop}, n), mss: 0xfffe, after: linux, reason: lowered, want: webMSS4}
			if src.Is6() {
				row.want = webMSS6
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// notTCP are packets that leave and that the clamp must not take for a SYN.
func notTCP() map[string][]byte {
	syn := packet.TCPHeader{Src: 443, Dst: 33000, Flags: packet.SYN, Options: []byte{2, 4, 5, 0xb4}}
	return map[string][]byte{
		"ARP":             build(frame{packet.EthernetHeader{Type: packet.EtherTypeARP}, packet.Zeros(46)}),
		"UDP":             build(frame{ether, ip(vip4, client4), packet.UDPHeader{Src: 443, Dst: 33000}, packet.Zeros(20)}),
		"later fragment":  build(frame{ether, packet.IPv4Header{Src: vip4, Dst: client4, Offset: 8}, syn}),
		"extension":       build(frame{ether, ip(vip6, client6), packet.ExtensionHeader{Kind: packet.DestOptions}, syn}),
		"cut TCP header":  build(frame{ether, packet.IPv4Header{Src: vip4, Dst: client4, Protocol: packet.ProtocolTCP}, packet.Zeros(19)}),
		"IP ihl 4":        patched(build(frame{ether, ip(vip4, client4), syn}), 14, 4<<4|4),
		"data offset 4":   patched(build(frame{ether, ip(vip4, client4), syn}), 14+20+12, 4<<4),
		"second VLAN tag": build(frame{ether, packet.VLANTag{ID: 1}, packet.VLANTag{ID: 2}, ip(vip4, client4), syn}),
	}
}

func patched(b []byte, at int, value byte) []byte {
	b[at] = value
	return b
}

func checkEgress(t *testing.T, h *testHost, in, want []byte, reason bpfHostReason) {
	t.Helper()
	before := h.counts(t)
	verdict, out := run(t, h.HostEgress, in, nil)
	if verdict != tcNext {
		t.Errorf("verdict is %d, want %d", verdict, uint32(tcNext))
	}
	packet.Equal(t, out, want)
	checkCounts(t, before, h.counts(t), reason, len(in)-14, "", 0)
}

// TestEgress runs every row. Build computes checksums of its own, so an expected
// frame that is met byte for byte has them right; gopacket verifies them too.
func TestEgress(t *testing.T) {
	h := newTestHost(t)
	hit := make(map[bpfHostReason]bool)
	for _, row := range egressRows() {
		hit[row.reason] = true
		t.Run(row.name, func(t *testing.T) {
			want := row.build(row.want)
			checkEgress(t, h, row.build(row.mss), want, row.reason)
			checkChecksums(t, want)
		})
	}
	refused := uint64(0)
	for _, s := range h.plan.services {
		c, err := readCounter(h.ServiceRefusals, h.indexes[s.identity()])
		if err != nil {
			t.Fatal(err)
		}
		refused += c.Packets
	}
	if refused != 3 {
		t.Errorf("%d connections to services are counted as refused, want 3", refused)
	}
	for name, in := range notTCP() {
		t.Run(name, func(t *testing.T) { checkEgress(t, h, in, in, bpfHostReasonHOST_PASS_EGRESS) })
	}
	for reason := bpfHostReasonHOST_PASS_EGRESS; isEgress(reason); reason++ {
		if !hit[reason] && reason != podReply { // TestIngressPods
			t.Errorf("no row ends in %s", reasonName(t, reason))
		}
	}
}

// isEgress reports whether a reason is one of packets that leave. Those that were appended later are
// of packets that come in.
func isEgress(reason bpfHostReason) bool {
	return reason >= bpfHostReasonHOST_PASS_EGRESS && reason <= bpfHostReasonHOST_CLAMP_ABSENT
}
