package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
)

// The harness fills the director's maps by hand, without Datapath: what a packet
// table says about the program must not depend on the code that feeds it.

// testWorld is everything a director is told.
type testWorld struct {
	services []*testService
	settings directorSettings
	silent   bool // no budget for ICMP errors
}

// testService is one service; its position is its index.
type testService struct {
	name     string
	segment  model.Segment
	vip      netip.Addr
	protocol model.Protocol
	port     model.PortRange
	affinity model.Affinity
	salt     uint64
	backends []testBackend
	ring     model.Ring // no slots, and no noRing: one slot of the first backend, then the second
	noRing   bool
	index    uint32 // of the service
	first    uint32 // index of the first backend
}

// testBackend is one backend. Zero: active, mode l2dsr, on the interface that
// packets come in on, MTU 1500.
type testBackend struct {
	mode     model.Mode
	snat     bool
	address  netip.Addr
	port     uint16
	state    directorBackendState
	vlan     uint16
	keepTags bool
	local    bool
	gone     bool // state is free, not to be filled in
	mtu      uint16
	ifindex  uint32
}

// BPF_PROG_TEST_RUN says that packets come in on lo.
const ingress = 1

// otherEgress is an interface that packets may leave by, noEgress one that they
// may not. The device map takes any number for the one real interface there is.
const (
	otherEgress = 1007
	noEgress    = 1008
)

var (
	clientMAC  = [6]byte{2, 0, 0, 0, 0, 0xc1}
	ownMAC     = [6]byte{2, 0, 0, 0, 0, 0xd1}
	egressMAC  = [6]byte{2, 0, 0, 0, 0, 0xe1}
	tunnel4    = netip.MustParsePrefix("192.0.2.0/26")
	tunnel6    = netip.MustParsePrefix("2001:db8:77::/64")
	snatPorts  = model.PortRange{First: 10000, Last: 10063}
	linkMTU    = uint32(9000)
	icmpBudget = uint32(1 << 30)
)

// backendMAC is the next hop of the backend with this index.
func backendMAC(index uint32) [6]byte {
	return [6]byte{2, 0xb, 0, 0, byte(index >> 8), byte(index)}
}

// be16 and be32 are numbers in network order, as map keys and values have them.
func be16(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

func be32(b [4]byte) uint32 { return binary.NativeEndian.Uint32(b[:]) }

// abiAddress is struct address.
func abiAddress(a netip.Addr) (out directorAddress) {
	if a.IsValid() {
		copy(out.Bytes[:], a.AsSlice())
	}
	return out
}

// add puts a service at the end, with defaults where fields are zero.
func (w *testWorld) add(s testService) *testService {
	s.index, s.first = uint32(len(w.services)), 1
	if n := len(w.services); n > 0 {
		last := w.services[n-1]
		s.first = last.first + uint32(len(last.backends))
	}
	for i := range s.backends {
		b := &s.backends[i]
		if b.state == 0 && !b.gone {
			b.state = directorBackendStateBACKEND_ACTIVE
		}
		if b.mtu == 0 {
			b.mtu = 1500
		}
		if b.ifindex == 0 {
			b.ifindex = ingress
		}
	}
	if len(s.ring.Slots) == 0 && !s.noRing {
		next := model.NoBackend
		if len(s.backends) > 1 {
			next = 1
		}
		s.ring.Slots = []model.Slot{{Owner: 0, Next: next}}
	}
	w.services = append(w.services, &s)
	return &s
}

// testDirector is a loaded program with its maps.
type testDirector struct {
	*ebpf.Collection
	program *ebpf.Program
	world   *testWorld
	cpus    int
}

// mapSizes are enough for every test; a ring is created at its own size.
var mapSizes = map[string]uint32{
	"services4": 1024, "services6": 1024, "ranges4": 1024, "ranges6": 1024, "rings": 256, "backends": 512,
	"replies4": 1024, "replies6": 1024, "fragments": 4096, "egress": 16, "backend_counters": 512, "service_drops": 256,
}

// loadDirector loads the program and fills its maps with the world.
func loadTestDirector(t testing.TB, w *testWorld) *testDirector {
	t.Helper()
	spec, err := loadDirector()
	if err != nil {
		t.Fatalf("load director.bpf.o: %v", err)
	}
	return loadSpec(t, spec, "director", w)
}

func loadSpec(t testing.TB, spec *ebpf.CollectionSpec, program string, w *testWorld) *testDirector {
	t.Helper()
	for name, size := range mapSizes {
		if spec.Maps[name] == nil {
			t.Fatalf("there is no map %s", name)
		}
		spec.Maps[name].MaxEntries = size
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("load director: %+v", err)
	}
	t.Cleanup(c.Close)
	d := &testDirector{Collection: c, program: c.Programs[program], world: w, cpus: ebpf.MustPossibleCPU()}
	d.fill(t, spec.Maps["rings"].InnerMap)
	return d
}

func (d *testDirector) put(t testing.TB, name string, key, value any) {
	t.Helper()
	if err := d.Maps[name].Put(key, value); err != nil {
		t.Fatalf("put %+v in %s: %v", key, name, err)
	}
}

func (d *testDirector) fill(t testing.TB, ring *ebpf.MapSpec) {
	t.Helper()
	d.put(t, "this_director", uint32(0), d.world.abiSettings())
	d.put(t, "egress", uint32(otherEgress), uint32(ingress))
	for _, s := range d.world.services {
		for i := range s.backends {
			d.put(t, "backends", s.first+uint32(i), s.abiBackend(i))
			if s.backends[i].mode == model.NAT {
				d.putReply(t, s, i)
			}
		}
		d.putService(t, s)
		d.putRing(t, s, ring.Copy())
	}
}

func (w *testWorld) abiSettings() directorSettings {
	s := w.settings
	s.TunnelSource4 = be32(tunnel4.Addr().As4())
	s.TunnelMask4 = be32([4]byte{255, 255, 255, 192})
	s.TunnelSource6 = abiAddress(tunnel6.Addr())
	for i := range 8 {
		s.TunnelMask6.Bytes[i] = 255
	}
	if s.IcmpRate == 0 && !w.silent {
		s.IcmpRate = icmpBudget
	}
	if s.LinkMtu == 0 {
		s.LinkMtu = linkMTU
	}
	for _, service := range w.services {
		if !service.port.Single() {
			s.Flags |= uint32(directorSettingsFlagSETTINGS_RANGES)
		}
		for _, b := range service.backends {
			if b.mode == model.NAT {
				s.Flags |= uint32(directorSettingsFlagSETTINGS_REPLIES)
			}
			if b.snat {
				s.Flags |= uint32(directorSettingsFlagSETTINGS_SNAT)
			}
		}
	}
	return s
}

func (s *testService) abiBackend(i int) directorBackend {
	b := s.backends[i]
	out := directorBackend{
		Mac: backendMAC(s.first + uint32(i)), SourceMac: egressMAC, Vlan: be16(b.vlan), Mtu: b.mtu, Ifindex: b.ifindex,
		State: uint8(b.state), Mode: uint8(b.mode), Address: abiAddress(b.address), Vip: abiAddress(s.vip),
		Port: be16(b.port), Service: s.index,
	}
	if s.port.Single() {
		out.VipPort = be16(s.port.First)
	}
	for flag, set := range map[directorBackendFlag]bool{
		directorBackendFlagBACKEND_IPV6:      b.address.Is6(),
		directorBackendFlagBACKEND_LOCAL:     b.local,
		directorBackendFlagBACKEND_SNAT:      b.snat,
		directorBackendFlagBACKEND_KEEP_TAGS: b.keepTags,
	} {
		if set {
			out.Flags |= uint8(flag)
		}
	}
	return out
}

// icmpOf is the protocol that marks an address as a VIP.
func icmpOf(a netip.Addr) uint8 {
	if a.Is4() {
		return 1
	}
	return 58
}

func endpointKey(segment model.Segment, a netip.Addr, protocol uint8, port uint16) any {
	if a.Is4() {
		return directorEndpoint4{Segment: segment.Key(), Address: be32(a.As4()), Protocol: protocol, Port: be16(port)}
	}
	return directorEndpoint6{Segment: segment.Key(), Address: abiAddress(a), Protocol: protocol, Port: be16(port)}
}

// family picks the map for an address: services4 or services6.
func family(name string, a netip.Addr) string {
	if a.Is4() {
		return name + "4"
	}
	return name + "6"
}

func (d *testDirector) putService(t testing.TB, s *testService) {
	t.Helper()
	d.put(t, family("services", s.vip), endpointKey(s.segment, s.vip, icmpOf(s.vip), 0), uint32(0xffffffff))
	if s.port.Single() {
		d.put(t, family("services", s.vip), endpointKey(s.segment, s.vip, uint8(s.protocol), s.port.First), s.index)
		return
	}
	for _, p := range portPrefixes(s.port) {
		bits := uint32(80 + p.bits) // segment, address, protocol and padding are exact
		if s.vip.Is4() {
			d.put(t, "ranges4", directorRange4{PrefixLen: bits, Segment: s.segment.Key(), Address: be32(s.vip.As4()),
				Protocol: uint8(s.protocol), Port: be16(p.port)}, s.index)
		} else {
			d.put(t, "ranges6", directorRange6{PrefixLen: bits + 96, Segment: s.segment.Key(), Address: abiAddress(s.vip),
				Protocol: uint8(s.protocol), Port: be16(p.port)}, s.index)
		}
	}
}

type portPrefix struct {
	port uint16
	bits int
}

// portPrefixes covers a range with the ports that share their first bits, the
// slow and obvious way.
func portPrefixes(r model.PortRange) (out []portPrefix) {
	last := int(r.Last)
	if r.All() {
		last = 65535
	}
	for at := int(r.First); at <= last; {
		size := 1
		for at%(size*2) == 0 && at+size*2-1 <= last && size < 65536 {
			size *= 2
		}
		bits := 16
		for n := size; n > 1; n /= 2 {
			bits--
		}
		out = append(out, portPrefix{uint16(at), bits})
		at += size
	}
	return out
}

func (d *testDirector) putRing(t testing.TB, s *testService, spec *ebpf.MapSpec) {
	t.Helper()
	lines := encodeRing(s)
	spec.MaxEntries = uint32(len(lines))
	m, err := ebpf.NewMap(spec)
	if err != nil {
		t.Fatalf("create ring: %v", err)
	}
	defer m.Close()
	for i, line := range lines {
		if err := m.Put(uint32(i), line); err != nil {
			t.Fatalf("put line %d of a ring: %v", i, err)
		}
	}
	d.put(t, "rings", s.index, m)
}

// encodeRing lays a ring out as bpf/types.h says: the header, the slots eight to
// a line, the lists.
func encodeRing(s *testService) [][]byte {
	index := func(candidate uint32) uint32 {
		if candidate == model.NoBackend {
			return 0
		}
		return s.first + candidate
	}
	header := binary.NativeEndian.AppendUint32(nil, uint32(len(s.ring.Slots)))
	header = binary.NativeEndian.AppendUint32(header, s.index)
	header = binary.NativeEndian.AppendUint64(header, s.salt)
	header = append(header, 0, byte(s.affinity))
	lines := [][]byte{header}
	firstList := uint32(1 + (len(s.ring.Slots)+7)/8)
	for chunk := range slices.Chunk(s.ring.Slots, 8) {
		var line []byte
		for _, slot := range chunk {
			next := index(slot.Next)
			if slot.Next != model.NoBackend && slot.Next&model.ListFlag != 0 {
				next = model.ListFlag | (firstList + slot.Next&^model.ListFlag)
			}
			line = binary.NativeEndian.AppendUint32(line, index(slot.Owner))
			line = binary.NativeEndian.AppendUint32(line, next)
		}
		lines = append(lines, line)
	}
	for _, list := range s.ring.Lists {
		line := binary.NativeEndian.AppendUint32(nil, uint32(len(list)))
		for _, c := range list {
			line = binary.NativeEndian.AppendUint32(line, index(c))
		}
		lines = append(lines, line)
	}
	for i := range lines {
		lines[i] = append(lines[i], make([]byte, 64-len(lines[i]))...)
	}
	return lines
}

func (d *testDirector) putReply(t testing.TB, s *testService, i int) {
	t.Helper()
	b := s.backends[i]
	port := b.port
	if port == 0 {
		port = s.port.First
	}
	d.put(t, family("replies", b.address), endpointKey(s.segment, b.address, uint8(s.protocol), port), s.first+uint32(i))
}

// counts is every counter of the director, by name.
type counts map[string]directorCounter

// reasonNames are the names of enum reason by number, from the program's own BTF.
func (d *testDirector) counts(t testing.TB) counts {
	t.Helper()
	out := counts{}
	for name, label := range map[string]func(uint32) string{
		"reasons":          func(i uint32) string { return reasonName(directorReason(i)) },
		"backend_counters": func(i uint32) string { return fmt.Sprintf("backend %d", i) },
		"service_drops":    func(i uint32) string { return fmt.Sprintf("drops of service %d", i) },
	} {
		m := d.Maps[name]
		keys := make([]uint32, m.MaxEntries())
		values := make([]directorCounter, int(m.MaxEntries())*d.cpus)
		var cursor ebpf.MapBatchCursor
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && n < len(keys) {
			t.Fatalf("read %s: %v", name, err)
		}
		for i, key := range keys[:n] {
			var sum directorCounter
			for _, v := range values[i*d.cpus : (i+1)*d.cpus] {
				sum.Packets += v.Packets
				sum.Bytes += v.Bytes
			}
			if sum.Packets > 0 {
				out[label(key)] = sum
			}
		}
	}
	return out
}

// since returns what was counted after an earlier reading.
func (c counts) since(before counts) counts {
	out := counts{}
	for name, now := range c {
		if was := before[name]; now != was {
			out[name] = directorCounter{Packets: now.Packets - was.Packets, Bytes: now.Bytes - was.Bytes}
		}
	}
	return out
}

func (c counts) String() string {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, "%s: %d packets, %d bytes; ", name, c[name].Packets, c[name].Bytes)
	}
	return b.String()
}

// run sends one frame through the program. metadata bytes of the frame's
// beginning take room from the headroom, as a driver with little of it does.
func (d *testDirector) run(t testing.TB, frame []byte, metadata int) (action uint32, out []byte) {
	t.Helper()
	o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+512)}
	if metadata > 0 {
		o.Data = append(make([]byte, metadata), frame...)
		o.DataOut = make([]byte, len(o.Data)+512)
		o.Context = &xdpContext{Data: uint32(metadata), DataEnd: uint32(len(o.Data)), Ingress: ingress}
	}
	action, err := d.program.Run(o)
	if err != nil {
		t.Fatalf("run %d bytes: %v", len(frame), err)
	}
	return action, o.DataOut[min(metadata, len(o.DataOut)):]
}

// xdpContext is the kernel's struct xdp_md.
type xdpContext struct {
	Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32
}
