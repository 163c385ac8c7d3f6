package datapath

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf/features"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// One VIP in several segments, and backends in networks with and without tags:
// each segment's service gets its own packets, and each backend its network's tag.
func testSegmentsAndTags(t *testing.T) {
	w := &testWorld{}
	var rows []row
	for _, is4 := range []bool{true, false} {
		for _, mode := range []model.Mode{model.L2DSR, model.IPIP, model.GUE, model.NAT} {
			rows = append(rows, w.segmentRows(is4, mode)...)
		}
	}
	loadTestDirector(t, w).check(t, rows)
}

// tagging is a segment, the tags that packets of it come in with, and those
// that they must leave with.
type tagging struct {
	name     string
	segment  model.Segment
	backend  testBackend
	in, left []packet.Header
}

var (
	c100 = packet.VLANTag{ID: 100, Priority: 6}
	c200 = packet.VLANTag{ID: 200}
	s300 = packet.VLANTag{TPID: packet.EtherTypeQinQ, ID: 300, DropOK: true}
	c300 = packet.VLANTag{ID: 300}
)

func vlan(id uint32) model.Segment { return model.Segment{Kind: model.SegmentVLAN, ID: id} }

var taggings = []tagging{
	{"no tag", model.Segment{}, testBackend{}, nil, nil},
	{"tag added", model.Segment{}, testBackend{vlan: 200}, nil, []packet.Header{c200}},
	{"tag removed", vlan(100), testBackend{}, []packet.Header{c100}, nil},
	{"tag changed", vlan(101), testBackend{vlan: 200}, []packet.Header{packet.VLANTag{ID: 101, Priority: 6}}, []packet.Header{c200}},
	{"tag kept", vlan(102), testBackend{keepTags: true}, []packet.Header{packet.VLANTag{ID: 102, DropOK: true}}, []packet.Header{packet.VLANTag{ID: 102, DropOK: true}}},
	{"two tags removed", vlan(300<<12 | 100), testBackend{}, []packet.Header{s300, c100}, nil},
	{"two tags to one", vlan(300<<12 | 101), testBackend{vlan: 200}, []packet.Header{s300, packet.VLANTag{ID: 101}}, []packet.Header{c200}},
	{"two tags kept", vlan(300<<12 | 102), testBackend{keepTags: true}, []packet.Header{s300, packet.VLANTag{ID: 102}}, []packet.Header{s300, packet.VLANTag{ID: 102}}},
	{"two customer tags", vlan(300<<12 | 103), testBackend{}, []packet.Header{c300, packet.VLANTag{ID: 103}}, nil},
	{"one service tag", vlan(301), testBackend{}, []packet.Header{packet.VLANTag{TPID: packet.EtherTypeQinQ, ID: 301}}, nil},
}

// segmentRows adds the same VIP to every segment of taggings.
func (w *testWorld) segmentRows(is4 bool, mode model.Mode) (rows []row) {
	vip := vipAddress(is4, int(mode)+1)
	var untagged scenario
	for _, tag := range taggings {
		backend := tag.backend
		backend.mode, backend.address = mode, backendAddress(is4, len(w.services))
		two := mode == model.NAT && tag.segment.ID > 0xfff
		if mode != model.L2DSR && backend.keepTags && !two {
			continue // tunnels leave in the network of their backend, and nat writes one tag again
		}
		s := scenario{client: clientOf(is4), testService: w.add(testService{vip: vip, segment: tag.segment, protocol: model.TCP,
			port: singlePort(servicePort), salt: 99, backends: []testBackend{backend}})}
		if tag.segment == (model.Segment{}) && tag.backend.vlan != 0 {
			s.vip = vipAddress(is4, int(mode)+100) // a second service without a segment
		}
		if tag.name == "no tag" {
			untagged = s
		}
		rows = append(rows, s.tagged(tag, mode))
	}
	// A tag with ID 0 is a priority, not a network.
	priority := tagging{name: "priority tag", in: []packet.Header{packet.VLANTag{Priority: 7}}}
	return append(rows, untagged.tagged(priority, mode))
}

func (s scenario) tagged(tag tagging, mode model.Mode) row {
	r := s.forward(mode.String()+", "+tag.name, s.flow(), 0, s.data(50)...)
	r.in = packet.Build(append(append([]packet.Header{arrived}, tag.in...), s.data(50)...)...)
	if mode == model.NAT && tag.backend.keepTags {
		r.out = slices.Concat(r.out[:12], r.in[12:12+4*len(tag.in)], r.out[12:])
	}
	if mode == model.L2DSR {
		link := append([]packet.Header{s.left(0)}, tag.left...)
		r.out = packet.Build(append(link, s.data(50)...)...)
	}
	return r
}

// Packets leave by the interface that their backend is behind.
func testEgress(t *testing.T) {
	w := &testWorld{}
	d := func() *testDirector { return loadTestDirector(t, w) }
	var rows []row
	for _, way := range ways {
		if isNAT(way) {
			continue
		}
		backend := testBackend{mode: way.mode, address: backendAddress(way.over4 || way.sameProto, 5)}
		add := func(ifindex uint32) scenario {
			backend.ifindex = ifindex
			return scenario{client: client4, testService: w.add(testService{vip: vipAddress(true, len(w.services)), protocol: model.UDP,
				port: singlePort(servicePort), backends: []testBackend{backend}})}
		}
		other, none := add(otherEgress), add(noEgress)
		rows = append(rows,
			other.forward(way.name+", another interface", other.flow(), 0, other.data(9)...),
			row{name: way.name + ", no such interface", in: build(none.data(9)...)}.dropped(abi.ReasonDROP_REDIRECT_FAILED, none.testService))
	}
	d().check(t, rows)
}

// If the driver leaves no room for an outer header the packet is dropped. (The
// kernel takes more than 32 bytes of metadata, which is how the test uses the
// headroom up, since 6.8.)
func testNoHeadroom(t *testing.T) {
	version, err := features.LinuxVersionCode()
	must(t, err)
	if version < 6<<16|8<<8 {
		reached(abi.ReasonDROP_NO_HEADROOM, "not on this kernel")
		t.Skip("this kernel is older than 6.8 and has no way to use the headroom up")
	}
	w := &testWorld{}
	var rows []row
	for _, s := range w.scenarios(func(way wayTo) bool { return way.mode == model.IPIP || way.mode == model.GUE }) {
		full := row{name: s.name, in: build(s.data(9)...), metadata: 212}
		rows = append(rows, full.dropped(abi.ReasonDROP_NO_HEADROOM, s.testService))
	}
	loadTestDirector(t, w).check(t, rows)
}
