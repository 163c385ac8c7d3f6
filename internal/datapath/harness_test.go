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
	ring    *ebpf.MapSpec
	table   *ebpf.MapSpec // of full NAT
	snat    *ebpf.Map     // the one in use
	world   *testWorld
	cpus    int
}

// mapSizes are enough for every test; a ring is created at its own size.
var mapSizes = map[string]uint32{
	"services4": 1024, "services6": 1024, "ranges4": 1024, "ranges6": 1024, "rings": 256, "backends": 512,
	"replies4": 1024, "replies6": 1024, "fragments": 4096, "egress": 16, "backend_counters": 512, "service_drops": 256,
}

// sharedDirector is loaded once: it takes a while, more so in an emulated guest.
var sharedDirector *testDirector

// loadTestDirector returns the program with nothing but the world in its maps.
func loadTestDirector(t testing.TB, w *testWorld) *testDirector {
	t.Helper()
	if sharedDirector == nil {
		spec, err := loadDirector()
		if err != nil {
			t.Fatalf("load director.bpf.o: %v", err)
		}
		sharedDirector = loadSpec(t, spec, "director")
	}
	sharedDirector.clear(t)
	sharedDirector.fill(t, w)
	return sharedDirector
}

func loadSpec(t testing.TB, spec *ebpf.CollectionSpec, program string) *testDirector {
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
	return &testDirector{Collection: c, program: c.Programs[program], ring: spec.Maps["rings"].InnerMap,
		table: spec.Maps["snat_tables"].InnerMap, cpus: ebpf.MustPossibleCPU()}
}

// clear empties every map but the counters, of which only changes are looked at.
func (d *testDirector) clear(t testing.TB) {
	t.Helper()
	for name, m := range d.Maps {
		switch m.Type() {
		case ebpf.Hash, ebpf.LRUHash, ebpf.LPMTrie, ebpf.DevMapHash:
			var keys [][]byte
			var key []byte
			for iterator := m.Iterate(); iterator.Next(&key, new([]byte)); {
				keys = append(keys, slices.Clone(key))
			}
			for _, key := range keys {
				if err := m.Delete(key); err != nil {
					t.Fatalf("empty %s: %v", name, err)
				}
			}
		}
	}
	if d.world == nil {
		return
	}
	for _, s := range d.world.services {
		if err := d.Maps["rings"].Delete(s.index); err != nil {
			t.Fatalf("empty rings: %v", err)
		}
		for i := range s.backends {
			d.put(t, "backends", s.first+uint32(i), directorBackend{})
		}
	}
	d.world = nil
}

func (d *testDirector) put(t testing.TB, name string, key, value any) {
	t.Helper()
	if err := d.Maps[name].Put(key, value); err != nil {
		t.Fatalf("put %+v in %s: %v", key, name, err)
	}
}

func (d *testDirector) fill(t testing.TB, w *testWorld) {
	t.Helper()
	d.world = w
	d.put(t, "this_director", uint32(0), d.world.abiSettings())
	d.put(t, "egress", uint32(otherEgress), uint32(ingress))
	d.putSNAT(t, snatSources, snatPorts)
	for _, s := range d.world.services {
		for i := range s.backends {
			d.put(t, "backends", s.first+uint32(i), s.abiBackend(i))
			if s.backends[i].mode == model.NAT {
				d.putReply(t, s, i)
			}
		}
		d.putService(t, s)
		d.putRing(t, s, d.ring.Copy())
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
	header = append(header, 0, byte(s.affinity), 0)
	for _, b := range s.backends {
		if b.snat {
			header[len(header)-1] = byte(directorRingFlagRING_SNAT)
		}
	}
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

// reading is every counter of the director at one moment, by map.
type reading map[string][]directorCounter

// labels name the counters of each map.
var labels = map[string]func(int) string{
	"reasons":          func(i int) string { return reasonName(directorReason(i)) },
	"backend_counters": func(i int) string { return fmt.Sprintf("backend %d", i) },
	"service_drops":    func(i int) string { return fmt.Sprintf("drops of service %d", i) },
}

func (d *testDirector) read(t testing.TB) reading {
	t.Helper()
	out := reading{}
	for name := range labels {
		m := d.Maps[name]
		size := int(m.MaxEntries())
		keys, values := make([]uint32, size), make([]directorCounter, size*d.cpus)
		var cursor ebpf.MapBatchCursor
		if n, err := m.BatchLookup(&cursor, keys, values, nil); n < size {
			t.Fatalf("read %s: %d of %d: %v", name, n, size, err)
		}
		sums := make([]directorCounter, size)
		for i, key := range keys {
			for _, v := range values[i*d.cpus : (i+1)*d.cpus] {
				sums[key].Packets += v.Packets
				sums[key].Bytes += v.Bytes
			}
		}
		out[name] = sums
	}
	return out
}

// counts are counters by their names, without those that are zero.
type counts map[string]directorCounter

// since returns what was counted after an earlier reading.
func (r reading) since(before reading) counts {
	out := counts{}
	for name, counters := range r {
		for i, now := range counters {
			if was := before[name][i]; now != was {
				out[labels[name](i)] = directorCounter{Packets: now.Packets - was.Packets, Bytes: now.Bytes - was.Bytes}
			}
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
