package agent

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/lab/packet"
)

// ingressRow is a frame and what becomes of it.
type ingressRow struct {
	name    string
	in      []byte
	reason  bpfHostReason
	service string // that counts it
	out     []byte // nil: as it came, if it is not dropped
	// only names the one hook that the row is for: the kernel takes the outermost
	// VLAN tag off before tc, and XDP frames have no gso_size.
	only string
	link int    // bytes of the link header; 0: 14
	gso  uint32 // gso_size of the frame
}

const (
	onXDP = "xdp"
	onTC  = "tc"
)

// tunnel is one way to wrap a packet.
type tunnel struct {
	name   string
	outer  []packet.Header
	reason bpfHostReason
}

// tunnels are all that directors use, and GUE with private data, with and without
// a checksum.
func tunnels() []tunnel {
	private := []byte{0, 0, 0, 2, 10, 0, 1, 12, 10, 0, 1, 13}
	longest := make([]byte, 31*4)
	var list []tunnel
	for _, f := range []struct {
		name     string
		src, dst netip.Addr
	}{{"4", director4, host4}, {"6", director6, host6}} {
		outer := ip(f.src, f.dst)
		udp := packet.UDPHeader{Src: 50000, Dst: 6080}
		noChecksum := packet.UDPHeader{Src: 50000, Dst: 6080, NoChecksum: true}
		list = append(list,
			tunnel{"ip" + f.name, frame{outer}, bpfHostReasonHOST_DECAP_IPIP},
			tunnel{"gue" + f.name, frame{outer, noChecksum, packet.GUEHeader{}}, bpfHostReasonHOST_DECAP_GUE},
			tunnel{"gue" + f.name + " with checksum", frame{outer, udp, packet.GUEHeader{}}, bpfHostReasonHOST_DECAP_GUE},
			tunnel{"gue" + f.name + " with candidates", frame{outer, noChecksum, packet.GUEHeader{Flags: 0x1, Private: private}}, bpfHostReasonHOST_DECAP_GUE},
			tunnel{"gue" + f.name + " with 124 private bytes", frame{outer, udp, packet.GUEHeader{Private: longest}}, bpfHostReasonHOST_DECAP_GUE})
	}
	return list
}

// inners are packets that a director may send, and the service that counts them.
func inners() []struct {
	name, service string
	headers       frame
} {
	destinationOptions := packet.ExtensionHeader{Kind: packet.DestOptions}
	return []struct {
		name, service string
		headers       frame
	}{
		{"TCP", "web4", frame{ip(client4, vip4), packet.TCPHeader{Src: 33000, Dst: 443, Flags: packet.ACK}, packet.Text("GET /")}},
		{"UDP", "dns4", frame{ip(client4, vip4), packet.UDPHeader{Src: 33000, Dst: 53}, packet.Text("?")}},
		{"UDP without data", "dns4", frame{ip(client4, vip4), packet.UDPHeader{Src: 33000, Dst: 53}}},
		{"first port of a range", "range4", frame{ip(client4, rangeVIP4), packet.TCPHeader{Src: 33000, Dst: 8000}}},
		{"last port of a range", "range4", frame{ip(client4, rangeVIP4), packet.TCPHeader{Src: 33000, Dst: 8100}}},
		{"IP options", "web4", frame{packet.IPv4Header{Src: client4, Dst: vip4, Options: []byte{1, 1, 1, 0}}, packet.TCPHeader{Src: 33000, Dst: 443}}},
		{"ICMP error", "192.0.2.10", frame{ip(client4, vip4), packet.ICMPv4Header{Type: 3, Code: 4, Rest: 1400},
			packet.Quote(8, ip(vip4, client4), packet.TCPHeader{Src: 443, Dst: 33000})}},
		{"first fragment", "dns4", frame{packet.IPv4Header{Src: client4, Dst: vip4, ID: 7, MF: true}, packet.UDPHeader{Src: 33000, Dst: 53}, packet.Zeros(16)}},
		{"later fragment", "192.0.2.10", frame{packet.IPv4Header{Src: client4, Dst: vip4, ID: 7, Offset: 24, Protocol: packet.ProtocolUDP}, packet.Zeros(3)}},
		{"TCP6", "web6", frame{ip(client6, vip6), packet.TCPHeader{Src: 33000, Dst: 443, Flags: packet.SYN}, packet.Text("hello")}},
		{"UDP6", "dns6", frame{ip(client6, vip6), packet.UDPHeader{Src: 33000, Dst: 53}, packet.Text("?")}},
		{"any port", "all6", frame{ip(client6, rangeVIP6), packet.TCPHeader{Src: 33000, Dst: 65535}}},
		{"extension headers", "web6", frame{ip(client6, vip6), packet.ExtensionHeader{Kind: packet.HopByHop}, destinationOptions,
			packet.AuthHeader{ICV: make([]byte, 12)}, packet.TCPHeader{Src: 33000, Dst: 443}}},
		{"as many extension headers as a director follows", "web6", frame{ip(client6, vip6), packet.ExtensionHeader{Kind: packet.HopByHop},
			destinationOptions, destinationOptions, destinationOptions, destinationOptions, destinationOptions, packet.TCPHeader{Src: 33000, Dst: 443}}},
		{"ICMPv6 error", "2001:db8::10", frame{ip(client6, vip6), packet.ICMPv6Header{Type: 2, Rest: 1400},
			packet.Quote(8, ip(vip6, client6), packet.TCPHeader{Src: 443, Dst: 33000})}},
		{"first fragment of IPv6", "dns6", frame{ip(client6, vip6), packet.FragmentHeader{More: true, ID: 7}, packet.UDPHeader{Src: 33000, Dst: 53}, packet.Zeros(16)}},
		{"later fragment of IPv6", "2001:db8::10", frame{ip(client6, vip6), packet.FragmentHeader{Offset: 24, ID: 7, Next: packet.ProtocolUDP}, packet.Zeros(5)}},
	}
}

// delivered are all inner packets in all tunnels, without a tag and with one.
func delivered() []ingressRow {
	var rows []ingressRow
	for _, tunnel := range tunnels() {
		for _, inner := range inners() {
			for _, link := range []frame{{ether}, {ether, packet.VLANTag{ID: 5, Priority: 3}}} {
				row := ingressRow{
					name:    fmt.Sprintf("%s in %s, %d tags", inner.name, tunnel.name, len(link)-1),
					in:      build(link, tunnel.outer, inner.headers),
					reason:  tunnel.reason,
					service: inner.service,
					out:     build(link, inner.headers),
				}
				if len(link) > 1 {
					row.only, row.link = onXDP, 18
				}
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// ecnTable is figure 4 of RFC 6040: the field of the inner packet afterwards, or
// dropped. Rows are the inner field, columns the outer one: Not-ECT, ECT(1),
// ECT(0), CE, as numbered on the wire.
const dropped = 0xff

var ecnTable = [4][4]uint8{
	0: {0, 0, 0, dropped},
	1: {1, 1, 1, 3},
	2: {2, 1, 2, 3},
	3: {3, 3, 3, 3},
}

func congestion() []ingressRow {
	const dscp = 0x2e << 2
	header := func(src, dst netip.Addr, tos uint8) packet.Header {
		if src.Is4() {
			return packet.IPv4Header{Src: src, Dst: dst, TOS: tos}
		}
		return packet.IPv6Header{Src: src, Dst: dst, TrafficClass: tos, FlowLabel: 0xabcde}
	}
	var rows []ingressRow
	for inner, columns := range ecnTable {
		for outer, want := range columns {
			for _, families := range []struct{ src, dst, client, vip netip.Addr }{
				{director4, host4, client4, vip4}, {director6, host6, client4, vip4},
				{director4, host4, client6, vip6}, {director6, host6, client6, vip6},
			} {
				udp := frame{packet.UDPHeader{Src: 33000, Dst: 53}, packet.Text("?")}
				row := ingressRow{
					name: fmt.Sprintf("ECN %d in %d, %v in %v", inner, outer, families.vip, families.dst),
					in: build(frame{ether, header(families.src, families.dst, uint8(outer)),
						header(families.client, families.vip, dscp|uint8(inner))}, udp),
					reason: bpfHostReasonHOST_DECAP_IPIP, service: "dns4",
				}
				if families.vip.Is6() {
					row.service = "dns6"
				}
				if want == dropped {
					row.reason, row.service = bpfHostReasonHOST_DROP_CONGESTED, ""
				} else {
					row.out = build(frame{ether, header(families.client, families.vip, dscp|want)}, udp)
				}
				rows = append(rows, row)
			}
		}
	}
	return rows
}

func checkIngress(t *testing.T, h *testHost, xdp bool, row ingressRow) {
	t.Helper()
	program, pass, drop := h.HostIngress, uint32(tcNext), uint32(tcShot)
	if xdp {
		program, pass, drop = h.HostXdp, xdpPass, xdpDrop
	}
	before := h.counts(t)
	verdict, out := run(t, program, row.in, row.context())
	after := h.counts(t)

	want := pass
	if isDrop(row.reason) {
		want = drop
	}
	if verdict != want {
		t.Errorf("verdict is %d, want %d\n%s", verdict, want, packet.Describe(row.in))
	}
	if want == pass {
		expected := row.out
		if expected == nil {
			expected = row.in
		}
		packet.Equal(t, out, expected)
		if row.out != nil && bytes.Equal(out, row.out) {
			checkChecksums(t, out)
		}
	}
	link := row.link
	if link == 0 {
		link = 14
	}
	checkCounts(t, before, after, row.reason, len(row.in)-link, row.service, len(row.out)-link)
}

// context sets what a socket buffer has beside its bytes.
func (row ingressRow) context() any {
	if row.gso == 0 {
		return nil
	}
	return &skContext{GSOSize: row.gso, GSOSegs: 2}
}

func isDrop(reason bpfHostReason) bool {
	return reason >= bpfHostReasonHOST_DROP_INNER_MALFORMED && reason <= bpfHostReasonHOST_DROP_DECAP_FAILED ||
		reason == bpfHostReasonHOST_DROP_UNKNOWN_HOP || reason == bpfHostReasonHOST_DROP_INNER_SOURCE
}

// checkCounts checks that exactly one reason counted the packet, and exactly the
// service that it is for.
func checkCounts(t *testing.T, before, after counts, reason bpfHostReason, length int, service string, inner int) {
	t.Helper()
	for i := range after.reasons {
		var want bpfCounter
		if bpfHostReason(i) == reason {
			want = bpfCounter{Packets: 1, Bytes: uint64(length)}
		}
		if got := minus(after.reasons[i], before.reasons[i]); got != want {
			t.Errorf("counter %s went up by %d packets, %d bytes; want %d, %d",
				reasonName(t, bpfHostReason(i)), got.Packets, got.Bytes, want.Packets, want.Bytes)
		}
	}
	for name := range after.services {
		var want bpfCounter
		if name == service {
			want = bpfCounter{Packets: 1, Bytes: uint64(inner)}
		}
		if got := minus(after.services[name], before.services[name]); got != want {
			t.Errorf("service %s counted %d packets, %d bytes; want %d, %d", name, got.Packets, got.Bytes, want.Packets, want.Bytes)
		}
	}
}

func minus(a, b bpfCounter) bpfCounter {
	return bpfCounter{Packets: a.Packets - b.Packets, Bytes: a.Bytes - b.Bytes}
}

// TestIngress runs every row through both programs.
func TestIngress(t *testing.T) {
	h := newTestHost(t)
	hit := make(map[bpfHostReason]bool)
	for _, rows := range [][]ingressRow{delivered(), congestion(), refused()} {
		for _, row := range rows {
			hit[row.reason] = true
			if row.only != onTC {
				t.Run("xdp/"+row.name, func(t *testing.T) { checkIngress(t, h, true, row) })
			}
			if row.only != onXDP {
				t.Run("tc/"+row.name, func(t *testing.T) { checkIngress(t, h, false, row) })
			}
		}
	}
	// Second chance needs sockets, and memory: see TestSecondChance and TestDatagrams. So do
	// pods: see TestIngressPods.
	second := []bpfHostReason{bpfHostReasonHOST_DROP_UNKNOWN_HOP, decapPod, noPod, bpfHostReasonHOST_DROP_POD_TAKEN, bpfHostReasonHOST_PASSED_ON, bpfHostReasonHOST_DECAP_NEW_FLOW, bpfHostReasonHOST_DECAP_LAST_RESORT, bpfHostReasonHOST_DROP_ROW_MALFORMED}
	for reason := range bpfHostReasonHOST_REASON_COUNT {
		if !isEgress(reason) && !hit[reason] && !slices.Contains(second, reason) {
			t.Errorf("no row ends in %s", reasonName(t, reason))
		}
	}
}

// checkChecksums verifies every checksum that gopacket finds, unless the packet is
// a fragment, whose checksum covers more than it has.
func checkChecksums(t *testing.T, frame []byte) {
	t.Helper()
	if err := packet.VerifyChecksums(frame); err != nil {
		t.Errorf("%v\n%s", err, packet.Describe(frame))
	}
}

// TestTruncated cuts tunnel packets at every byte as a link would: the outer length
// says more than there is.
func TestTruncated(t *testing.T) {
	h := newTestHost(t)
	for _, tunnel := range tunnels() {
		whole := build(frame{ether}, tunnel.outer, inners()[0].headers)
		for n := 14; n < len(whole); n++ {
			row := ingressRow{in: whole[:n], reason: bpfHostReasonHOST_PASS_MALFORMED}
			checkIngress(t, h, true, row)
			if n >= 14+40 { // newer kernels make no shorter socket buffers
				checkIngress(t, h, false, row)
			}
			if t.Failed() {
				t.Fatalf("%s, %d bytes of %d", tunnel.name, n, len(whole))
			}
		}
	}
}

// TestInnerTruncated cuts packets at every byte before they are wrapped: the outer
// length is that of what is there.
func TestInnerTruncated(t *testing.T) {
	h := newTestHost(t)
	for _, inner := range inners() {
		content := build(inner.headers)
		protocol := uint8(packet.ProtocolIPv4)
		if content[0]>>4 == 6 {
			protocol = packet.ProtocolIPv6
		}
		outer := carrying(frame{ip(director4, host4)}, protocol)
		for n := range content {
			row := ingressRow{
				in:     build(frame{ether}, outer, frame{packet.Bytes(content[:n])}),
				reason: bpfHostReasonHOST_DROP_INNER_MALFORMED,
			}
			checkIngress(t, h, true, row)
			checkIngress(t, h, false, row)
			if t.Failed() {
				t.Fatalf("%s, %d bytes of %d", inner.name, n, len(content))
			}
		}
	}
}

// carrying returns the outer headers with the protocol of what follows them.
func carrying(outer frame, protocol uint8) frame {
	outer = append(frame(nil), outer...)
	switch last := outer[len(outer)-1].(type) {
	case packet.IPv4Header:
		last.Protocol = protocol
		outer[len(outer)-1] = last
	case packet.IPv6Header:
		last.Next = &protocol
		outer[len(outer)-1] = last
	case packet.GUEHeader:
		last.Protocol = protocol
		outer[len(outer)-1] = last
	}
	return outer
}
