package datapath

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// The packet tables once more, with everything inside of tunnels of VXLAN and Geneve: each row's packet comes in
// a tunnel, and must leave as it would without one, in a tunnel to where its backend is or, for an answer, to
// where it came from.

// tunnelWorld is how the rows of a packet table come and go.
type tunnelWorld struct {
	kind    model.SegmentKind
	six     bool                // over IPv6
	tag     uint16              // of the outer frames
	options model.GeneveOptions // that come and leave
	front   bool                // services are in the front: packets leave with their headers overwritten
	from    *model.Segment      // that services are in; nil: the one of the tunnels
	fromVNI uint32              // that it has on the wire
	vni     uint32              // with which packets arrive; 0: as they leave
}

var tunnelWorlds = []tunnelWorld{
	{kind: model.SegmentVXLAN, front: true},
	{kind: model.SegmentVXLAN},
	{kind: model.SegmentVXLAN, six: true, front: true},
	{kind: model.SegmentVXLAN, tag: 77, front: true},
	{kind: model.SegmentGeneve, front: true},
	{kind: model.SegmentGeneve, options: ovnOptions, front: true},
	{kind: model.SegmentGeneve, six: true, options: ovnOptions},
	{kind: model.SegmentGeneve, six: true, front: true},
}

func (w tunnelWorld) String() string {
	return fmt.Sprintf("%s over 6: %v, tag %d, options %q, front %v", w.segment(), w.six, w.tag, w.options, w.front)
}

const (
	insideID    = 5001  // of the segment
	insideVNI   = 70001 // on the wire
	outsideMTU  = 1500  // of packets inside, as of testBackend
	clientPlace = 3000  // where clients are
)

var (
	vtepAddress4 = netip.MustParseAddr("192.0.2.200")
	vtepAddress6 = netip.MustParseAddr("2001:db8:77::200")
	peerVTEP4    = netip.MustParseAddr("192.0.2.201")
	peerVTEP6    = netip.MustParseAddr("2001:db8:77::201")
	underMAC     = [6]byte{2, 0, 0, 0, 0, 0xf1} // of this host in the underlay
	routerMAC    = [6]byte{2, 0, 0, 0, 0, 0xf2} // of the router there
	hostMAC      = [6]byte{2, 0, 0, 0, 0, 0xf3} // of the router in the segment that knows clients
	ovnOptions   = model.GeneveOptions("\x01\x02\x80\x01\x00\x03\x00\x07")
)

func (w tunnelWorld) segment() model.Segment { return model.Segment{Kind: w.kind, ID: insideID} }
func (w tunnelWorld) wire() model.Segment    { return model.Segment{Kind: w.kind, ID: insideVNI} }

func (w tunnelWorld) own() netip.Addr  { return pick(w.six, vtepAddress6, vtepAddress4) }
func (w tunnelWorld) peer() netip.Addr { return pick(w.six, peerVTEP6, peerVTEP4) }

func pick[T any](second bool, b, a T) T {
	if second {
		return b
	}
	return a
}

// vtepOf is where the backend with this index is.
func (w tunnelWorld) vtepOf(index uint32) netip.Addr {
	return numbered(!w.six, 9, int(index))
}

// header is what is between UDP and the frame inside.
func (w tunnelWorld) header(vni uint32, options model.GeneveOptions) packet.Header {
	if w.kind == model.SegmentVXLAN {
		return packet.VXLANHeader{VNI: vni}
	}
	return packet.GeneveHeader{VNI: vni, Options: []byte(options), Flags: uint8(truth(options.Critical()) << 6)}
}

func (w tunnelWorld) port() uint16 {
	if w.kind == model.SegmentVXLAN {
		return packet.VXLANPort
	}
	return packet.GenevePort
}

// wrapped is a frame in a tunnel.
func (w tunnelWorld) wrapped(link packet.EthernetHeader, ip packet.Header, source uint16, header packet.Header, frame []byte) []byte {
	headers := []packet.Header{link}
	if w.tag != 0 {
		headers = append(headers, packet.VLANTag{ID: w.tag})
	}
	return packet.Build(append(headers, ip, packet.UDPHeader{Src: source, Dst: w.port(), NoChecksum: !w.six}, header, packet.Bytes(frame))...)
}

// arrives is a frame as it comes in a tunnel.
func (w tunnelWorld) arrives(frame []byte) []byte {
	var outer packet.Header = packet.IPv4Header{Src: w.peer(), Dst: w.own(), TTL: 63, DF: true}
	if w.six {
		outer = packet.IPv6Header{Src: w.peer(), Dst: w.own(), HopLimit: 63}
	}
	return w.wrapped(packet.EthernetHeader{Dst: underMAC, Src: routerMAC}, outer, 51234, w.header(cmp.Or(w.vni, insideVNI), w.options), frame)
}

// leaves is a frame as it must leave in a tunnel; the flow's hash is in what left.
func (w tunnelWorld) leaves(frame, left []byte, to netip.Addr, options model.GeneveOptions) []byte {
	l3 := 14 + 4*int(truth(w.tag != 0))
	tos := uint8(0)
	if at := l3 + 6 + 14; len(frame) > 34 {
		_ = at
		tos = innerTOS(frame)
	}
	var outer packet.Header = packet.IPv4Header{Src: w.own(), Dst: to, TTL: 64, DF: true, TOS: tos}
	l4 := l3 + 20
	if w.six {
		l4 = l3 + 40
		label := uint32(0)
		if len(left) > l3+4 {
			label = binary.BigEndian.Uint32(left[l3:]) & 0xfffff
		}
		outer = packet.IPv6Header{Src: w.own(), Dst: to, HopLimit: 64, TrafficClass: tos, FlowLabel: label}
	}
	source := uint16(0xc000)
	if len(left) > l4+2 {
		source |= binary.BigEndian.Uint16(left[l4:])
	}
	return w.wrapped(packet.EthernetHeader{Dst: routerMAC, Src: underMAC}, outer, source, w.header(insideVNI, options), frame)
}

func innerTOS(frame []byte) uint8 {
	switch binary.BigEndian.Uint16(frame[12:]) {
	case packet.EtherTypeIPv4, packet.EtherTypeIPv6:
		return tos(frame[14:])
	}
	return 0
}

// turned are OVN's options of an answer.
func turned(o model.GeneveOptions) model.GeneveOptions {
	if o != ovnOptions {
		return ""
	}
	return o[:4] + o[6:8] + o[4:6]
}

// insideDirectors are loaded once for each world.
var insideDirectors = map[string]*testDirector{}

// inTunnels is the world in which packet tables run now; nil: packets come as they are.
var inTunnels *tunnelWorld

func loadInside(t testing.TB, w *testWorld) *testDirector {
	t.Helper()
	spec, err := loadPrograms()
	must(t, err)
	must(t, Options{VTEP: model.VTEP{Addresses: []netip.Addr{vtepAddress4}}}.addVTEP(spec))
	d := insideDirectors["vtep"]
	if d == nil {
		addClock(spec)
		for name, size := range map[string]uint32{"vtep_networks": 64, "vtep_peers": 64, "vtep_places": 4096, "vtep_backends": 2048, "vtep_hosts": 64, "vtep_own_addresses": 64, "vtep_stand_ins": 64} {
			spec.Maps[name].MaxEntries = size
		}
		d = loadSpec(t, spec, "director")
		insideDirectors["vtep"] = d
	}
	d.tunnels = inTunnels
	for _, s := range w.services {
		s.segment = inTunnels.segment()
		if inTunnels.from != nil {
			s.segment = *inTunnels.from
		}
	}
	d.clear(t)
	d.stopClock(t)
	d.fill(t, w)
	d.fillTunnels(t)
	return d
}

// fillTunnels says where this director, its peer and the backends are.
func (d *testDirector) fillTunnels(t testing.TB) {
	t.Helper()
	w := d.tunnels
	var self abi.VtepSelf
	must(t, d.Maps[abi.VTEP].Lookup(uint32(0), &self))
	self.Generation++
	self.Address4, self.Address6 = abi.BigEndianAddress(vtepAddress4), abi.AddressBytes(vtepAddress6)
	self.VxlanPort, self.GenevePort = be16(packet.VXLANPort), be16(packet.GenevePort)
	self.Segment = 0
	if w.tag != 0 {
		self.Segment = model.Segment{Kind: model.SegmentVLAN, ID: uint32(w.tag)}.Key()
	}
	d.put(t, abi.VTEP, uint32(0), self)
	d.put(t, "vtep_networks", w.wire().Key(), abi.VtepNetwork{Segment: w.segment().Key(), Mac: ownMAC})
	if w.fromVNI != 0 {
		d.put(t, "vtep_networks", model.Segment{Kind: w.from.Kind, ID: w.fromVNI}.Key(), abi.VtepNetwork{Segment: w.from.Key(), Mac: ownMAC})
	}
	for _, peer := range []netip.Addr{peerVTEP4, peerVTEP6} {
		d.put(t, "vtep_peers", peerKey(peer), uint8(1))
	}
	d.putPlace(t, clientPlace)
	for six := range uint32(2) {
		elsewhere := abi.VtepAddress{Segment: w.segment().Key(), Ipv6: six}
		d.put(t, "vtep_hosts", elsewhere, abi.VtepHost{Place: clientPlace, Mac: hostMAC, SourceMac: egressMAC, Mtu: outsideMTU})
	}
	for _, s := range d.world.services {
		for i := range s.backends {
			index := s.first + uint32(i)
			d.putPlace(t, index)
			in := abi.VtepBackend{Place: index, Segment: w.segment().Key(), ServiceSegment: w.segment().Key()}
			if b := &s.backends[i]; tunnels(b.mode) {
				in.Uses, in.Source = uint32(abi.VtepSourceVTEP_SOURCE_TUNNEL), abi.AddressBytes(ownInside(b.address.Is6()))
			}
			d.put(t, "vtep_backends", index, in)
		}
		if w.front && s.port.Single() {
			d.putFront(t, s)
		}
	}
}

// putPlace makes a place of this number.
func (d *testDirector) putPlace(t testing.TB, index uint32) {
	t.Helper()
	w := d.tunnels
	place := abi.VtepPlace{Mac: routerMAC, SourceMac: underMAC, Vlan: be16(w.tag), Options: uint8(len(w.options)), Vtep: abi.AddressBytes(w.vtepOf(index)),
		Vni: bigEndian32(insideVNI << 8), Ifindex: ingress}
	place.Flags = truth(w.six) | truth(w.kind == model.SegmentGeneve)<<1 | truth(w.options.Critical())<<2
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&place.Option)), len(place.Option)*4), w.options)
	d.put(t, "vtep_places", index, place)
}

// ownInside is the address of this director in the tenant's network.
func ownInside(six bool) netip.Addr {
	if six {
		return netip.MustParseAddr("fd00:99::3")
	}
	return netip.MustParseAddr("10.99.0.3")
}

func peerKey(a netip.Addr) abi.VtepPeer {
	return abi.VtepPeer{PrefixLen: 64 + uint32(a.BitLen()), Ipv6: uint32(truth(a.Is6())), Address: abi.AddressBytes(a)}
}

// inside is the row with its packet in a tunnel.
func (d *testDirector) inside(r row) row {
	w, length := d.tunnels, ipLength(r.in)
	if r.reason == abi.ReasonPASS_SENT_ALREADY && [6]byte(r.in[:6]) != ownMAC {
		none := uint64(0)
		r = row{name: r.name, in: r.in, before: r.before, bytes: &none}.passed(abi.ReasonPASS_OVERLAY_ASTRAY)
	}
	if r.reason == abi.ReasonPASS_NO_SERVICE && d.isForVIP(r.in) {
		r = row{name: r.name, in: r.in, before: r.before, bytes: r.bytes}.dropped(abi.ReasonDROP_NO_SERVICE, nil) // the kernel does not have it
	}
	if r.bytes == nil {
		r.bytes = &length
	}
	r.before = slices.Clone(r.before)
	for i := range r.before {
		r.before[i] = w.arrives(r.before[i])
	}
	out, late := r.out, r.late
	if binary.BigEndian.Uint16(append(r.in, make([]byte, 14)...)[12:]) == packet.EtherTypeVLAN || binary.BigEndian.Uint16(append(r.in, make([]byte, 14)...)[12:]) == packet.EtherTypeQinQ {
		r = row{name: r.name, in: r.in, bytes: r.bytes}.passed(abi.ReasonPASS_UNSUPPORTED) // no network is inside of a tenant's
	}
	r.in = w.arrives(r.in)
	r.out, r.late = nil, nil
	if r.action == xdpDrop || r.action == xdpPass {
		return r
	}
	to, options := w.peer(), turned(w.options)
	reply := r.backend == 0 && !strings.HasPrefix(reasonName(r.reason), "ANSWER_")
	switch {
	case r.backend != 0:
		to, options = w.vtepOf(r.backend), w.options
	case reply:
		to, options = w.vtepOf(clientPlace), w.options
	}
	r.action = xdpTX
	r.late = func(t *testing.T, left []byte) []byte {
		want := out
		if late != nil {
			want = late(t, w.innerOf(left))
		}
		if reply {
			want = slices.Concat(hostMAC[:], egressMAC[:], want[12:])
		}
		return w.leaves(want, left, to, options)
	}
	return r
}

// isForVIP says whether a frame is for an address that is a VIP.
func (d *testDirector) isForVIP(frame []byte) bool {
	return slices.ContainsFunc(d.world.services, func(s *testService) bool {
		at, length := 30, 4
		if s.vip.Is6() {
			at, length = 38, 16
		}
		return len(frame) >= at+length && s.vip.Is6() == (frame[14]>>4 == 6) && bytes.Equal(frame[at:at+length], s.vip.AsSlice())
	})
}

// innerOf is the frame inside of one that left.
func (w *tunnelWorld) innerOf(frame []byte) []byte {
	at := 14 + 4*int(truth(w.tag != 0)) + 20 + 20*int(truth(w.six)) + 16 + len(w.options)
	return frame[min(at, len(frame)):]
}

// TestInside runs packet tables in tunnels.
func TestInside(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	routeReplies(t)
	defer func() { inTunnels = nil }()
	for _, w := range tunnelWorlds {
		inTunnels = &w
		t.Run(w.String(), func(t *testing.T) {
			for name, table := range map[string]func(*testing.T){
				"forward":               testForward,
				"headers":               testHeaders,
				"zero checksums":        testZeroChecksums,
				"checksums that arrive": testArrivingChecksums,
				"truncated":             testTruncated,
				"no service":            testPassWhatIsNoService,
				"icmp errors":           testICMPErrors,
				"echo":                  testEcho,
				"echo, options":         testEchoOptions,
				"fragments":             testFragments,
				"too big":               testTooBig,
				"full nat":              testFullNAT,
				"nat replies":           testReplies,
				"nat errors":            testNATErrors,
				"nat fragments":         testNATFragments,
				"mutated":               testMutatedInside,
				"twin":                  testTwin,
				"twin of flow memory":   testFlowRandom,
			} {
				t.Run(name, table)
			}
		})
	}
}
