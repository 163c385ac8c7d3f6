package datapath

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// What the harness knows, as the maps hold it: the second reading of bpf/abi/types.h.

// be16 and be32 are numbers in network order, as map keys and values have them.
func be16(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

func be32(b [4]byte) uint32 { return binary.NativeEndian.Uint32(b[:]) }

// abiAddress is struct address.
func abiAddress(a netip.Addr) (out abi.Address) {
	if a.IsValid() {
		copy(out.Bytes[:], a.AsSlice())
	}
	return out
}

func (w *testWorld) abiSettings() abi.Settings {
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
	s.FlowShare, s.SnatShare = cmp.Or(s.FlowShare, flows.Ways), cmp.Or(s.SnatShare, snatBucketSize)
	s.Cpus, s.FlowBuckets, s.FlowSalt = uint32(ebpf.MustPossibleCPU()), testFlowBuckets, 0xf10f
	for _, service := range w.services {
		if !service.port.Single() {
			s.Flags |= uint32(abi.SettingsFlagSETTINGS_RANGES)
		}
		for _, b := range service.backends {
			if b.mode == model.NAT {
				s.Flags |= uint32(abi.SettingsFlagSETTINGS_REPLIES)
			}
			if b.asks {
				s.Flags |= uint32(abi.SettingsFlagSETTINGS_ASKS | abi.SettingsFlagSETTINGS_RANGES)
			}
		}
	}
	return s
}

func (s *testService) abiBackend(i int) abi.Backend {
	b := s.backends[i]
	out := abi.Backend{
		Mac: backendMAC(s.first + uint32(i)), SourceMac: egressMAC, Vlan: be16(b.vlan), Mtu: b.mtu, Ifindex: b.ifindex,
		State: uint8(b.state), Mode: uint8(b.mode), Address: abiAddress(b.address), Vip: abiAddress(s.vip),
		Port: be16(b.port), Service: s.index, Epoch: b.epoch,
	}
	if s.port.Single() {
		out.VipPort = be16(s.port.First)
	}
	if b.pod != 0 {
		out.Vip = abi.Address{}
		binary.BigEndian.PutUint32(out.Vip.Bytes[:], b.pod)
	}
	for flag, set := range map[abi.BackendFlag]bool{
		abi.BackendFlagBACKEND_IPV6:      b.address.Is6(),
		abi.BackendFlagBACKEND_LOCAL:     b.local,
		abi.BackendFlagBACKEND_SNAT:      b.snat,
		abi.BackendFlagBACKEND_KEEP_TAGS: b.keepTags && b.mode != model.NAT,
		abi.BackendFlagBACKEND_TWO_TAGS:  b.keepTags && b.mode == model.NAT,
		abi.BackendFlagBACKEND_REDIRECT:  b.redirect,
		abi.BackendFlagBACKEND_POD:       b.pod != 0,
		abi.BackendFlagBACKEND_ASKS:      b.asks,
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
		return abi.Endpoint4{Segment: segment.Key(), Address: be32(a.As4()), Protocol: protocol, Port: be16(port)}
	}
	return abi.Endpoint6{Segment: segment.Key(), Address: abiAddress(a), Protocol: protocol, Port: be16(port)}
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
			d.put(t, "ranges4", abi.Range4{PrefixLen: bits, Segment: s.segment.Key(), Address: be32(s.vip.As4()),
				Protocol: uint8(s.protocol), Port: be16(p.port)}, s.index)
		} else {
			d.put(t, "ranges6", abi.Range6{PrefixLen: bits + 96, Segment: s.segment.Key(), Address: abiAddress(s.vip),
				Protocol: uint8(s.protocol), Port: be16(p.port)}, s.index)
		}
	}
}

// putRefused writes the addresses that must not call a service: by hand, like the rest
// of this file.
func (d *testDirector) putRefused(t testing.TB, s *testService) {
	t.Helper()
	var filter [1 << sourceFilterBits / 64]uint64
	must(t, d.Maps[abi.SourceFilter].Lookup(uint32(0), &filter))
	mark := func(a netip.Addr) {
		sum := uint32(0)
		address := abiAddress(a)
		for at := 0; at < len(address.Bytes); at += 4 {
			sum ^= binary.LittleEndian.Uint32(address.Bytes[at:])
		}
		bit := sum * 0x9e3779b1 >> 17
		filter[bit/64] |= 1 << (bit % 64)
	}
	mark(s.vip)
	for i, b := range s.backends {
		if !b.address.IsValid() {
			continue
		}
		mark(b.address)
		d.put(t, "backend_sources", abi.BackendSource{Service: s.index, Address: abiAddress(b.address), Port: be16(s.backends[i].port)}, uint8(1))
	}
	d.put(t, abi.SourceFilter, uint32(0), filter)
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

// putRing writes a ring behind the others and switches to it.
func (d *testDirector) putRing(t testing.TB, s *testService) {
	t.Helper()
	first := d.lines
	for _, line := range encodeRing(s) {
		d.put(t, "ring_lines", d.lines, line)
		d.lines++
	}
	d.put(t, "rings", s.index, uint64(first))
	// Every other service has a place in the front, as if the others' were taken.
	if s.port.Single() && s.index%2 == 0 {
		d.putFront(t, s)
	}
}

// putFront gives the service its place in the front, with its ring.
func (d *testDirector) putFront(t testing.TB, s *testService) {
	t.Helper()
	entry, place := frontOf(endpoint{s.segment.Key(), s.vip, uint8(s.protocol), s.port.First})
	var ring uint64
	must(t, d.Maps["rings"].Lookup(s.index, &ring))
	entry.Service = frontService(s.index, ring)
	d.put(t, "fronts", place, entry)
	d.places = append(d.places, place)
}

// sourceSet is the number of the service's source ranges: any will do.
func (s *testService) sourceSet() uint32 { return 0x10000 + 3*s.index }

func (d *testDirector) putSources(t testing.TB, s *testService) {
	t.Helper()
	for _, p := range s.sourceRanges {
		d.put(t, "source_ranges", abi.SourceRange{PrefixLen: uint32(32 + p.Bits()), Set: s.sourceSet(), Address: abiAddress(p.Addr())}, uint8(1))
	}
	if s.quota > 0 {
		d.put(t, "service_quotas", s.index, uint64(s.quota))
	}
	if !s.kernelSources {
		return
	}
	for _, p := range testKernelSources {
		set := uint32(0xffffffff)
		if p.Addr().Is6() {
			set--
		}
		d.put(t, "source_ranges", abi.SourceRange{PrefixLen: uint32(32 + p.Bits()), Set: set, Address: abiAddress(p.Addr())}, uint8(1))
	}
}

// testKernelSources are whose packets some services leave to the kernel. The last one's bytes
// start an IPv6 address, too, whose packets are forwarded: 2001:db8::.
var testKernelSources = prefixes("10.77.0.0/24", "198.51.100.130", "2001:db8:c::4/126", "32.1.13.184")

// encodeRing lays a ring out as bpf/abi/types.h says: the header, the slots eight to
// a line, the lists; what QUIC needs; the ring before, which is laid out alike.
func encodeRing(s *testService) [][]byte {
	lines := s.encodeRows(&s.ring, s.affinity)
	for _, b := range s.backends {
		if b.snat {
			lines[0][22] |= byte(abi.RingFlagRING_SNAT)
		}
	}
	if s.memory {
		lines[0][22] |= byte(abi.RingFlagRING_MEMORY)
	}
	if s.redirected {
		lines[0][22] |= byte(abi.RingFlagRING_REDIRECTED)
	}
	if s.quota > 0 {
		lines[0][22] |= byte(abi.RingFlagRING_QUOTA)
	}
	if s.kernelSources {
		lines[0][22] |= byte(abi.RingFlagRING_KERNEL_SOURCES)
	}
	if len(s.sourceRanges) > 0 {
		lines[0][22] |= byte(abi.RingFlagRING_SOURCES)
		binary.NativeEndian.PutUint32(lines[0][48:], s.sourceSet())
	}
	if len(s.quic) > 0 {
		lines = append(lines, encodeQUIC(s, lines[0], len(lines))...)
	}
	if s.before != nil {
		binary.NativeEndian.PutUint32(lines[0][36:], uint32(len(lines)))
		lines = append(lines, s.encodeRows(&s.before.Ring, s.before.Affinity)...)
	}
	if s.tellsOwners() {
		owners := encodeOwners(lines, len(s.ring.Slots))
		lines[0][22] |= byte(abi.RingFlagRING_OWNERS | abi.RingFlagRING_MEMORY)
		binary.NativeEndian.PutUint32(lines[0][52:], uint32(len(lines)))
		lines = append(lines, owners...)
	}
	binary.NativeEndian.PutUint32(lines[0][16:], uint32(len(lines)))
	binary.NativeEndian.PutUint32(lines[0][56:], 1) // its flows may be steered
	return lines
}

// tellsOwners says whether a service's ring has the owners of slots apart from these: every other one that
// may have them, of both families and protocols, if any slot need not be read.
func (s *testService) tellsOwners() bool {
	reads := func(b testBackend) bool { return b.mode == model.GUE || b.snat }
	asks := func(slot model.Slot) bool { return slot.Next != model.NoBackend && slot.Next&model.ListFlag != 0 }
	plain := func(slot model.Slot) bool { return !asks(slot) }
	if s.settling || s.before != nil || !slices.ContainsFunc(s.ring.Slots, plain) || !s.memory && slices.ContainsFunc(s.ring.Slots, asks) {
		return false
	}
	return s.index%4%3 == 0 && s.policy == model.Maglev && s.affinity == model.AffinityFlow && !s.redirected && !s.kernelSources &&
		len(s.sourceRanges) == 0 && len(s.quic) == 0 && !slices.ContainsFunc(s.backends, reads)
}

// encodeOwners lays out the owners of slots, 32 to a line: 0 of a slot that has to be read.
func encodeOwners(lines [][]byte, slots int) (owners [][]byte) {
	for i := range slots {
		slot := lines[1+i/8][i%8*8:]
		owner := binary.NativeEndian.Uint32(slot)
		if binary.NativeEndian.Uint32(slot[4:])>>30 != 0 || owner > 0xffff {
			owner = 0
		}
		if i%32 == 0 {
			owners = append(owners, make([]byte, 64))
		}
		binary.NativeEndian.PutUint16(owners[i/32][i%32*2:], uint16(owner))
	}
	return owners
}

func (s *testService) encodeRows(ring *model.Ring, affinity model.Affinity) [][]byte {
	index := func(candidate uint32) uint32 {
		if candidate == model.NoBackend {
			return 0
		}
		return s.first + candidate
	}
	header := binary.NativeEndian.AppendUint32(nil, uint32(len(ring.Slots)))
	header = binary.NativeEndian.AppendUint32(header, s.index)
	header = binary.NativeEndian.AppendUint64(header, s.salt)
	header = append(header, 0, 0, 0, 0, byte(s.policy), affinity.Kind()) // lines are counted when all are there
	header = append(header, make([]byte, 32-len(header))...)
	header = binary.NativeEndian.AppendUint32(header, ring.Older)
	header = append(header, make([]byte, 64-len(header))...)
	header[61], header[62] = affinity.Prefix().V4, affinity.Prefix().V6
	lines := [][]byte{header}
	firstList := uint32(1 + (len(ring.Slots)+7)/8)
	number := 0
	for chunk := range slices.Chunk(ring.Slots, 8) {
		var line []byte
		for _, slot := range chunk {
			settles := ring == &s.ring && (s.settling || s.before != nil || s.settles != nil && s.settles[number])
			number++
			next := index(slot.Next)
			if slot.Next != model.NoBackend && slot.Next&model.ListFlag != 0 {
				next = model.ListFlag | (firstList + slot.Next&^model.ListFlag)
			} else if settles {
				next |= 1 << 30 // SLOT_SETTLING
			}
			line = binary.NativeEndian.AppendUint32(line, index(slot.Owner))
			line = binary.NativeEndian.AppendUint32(line, next)
		}
		lines = append(lines, line)
	}
	for _, list := range ring.Lists {
		line := binary.NativeEndian.AppendUint32(nil, uint32(len(list.Next)))
		for _, c := range list.Next {
			line = binary.NativeEndian.AppendUint32(line, index(c))
		}
		line = append(line, make([]byte, 32-len(line))...)
		line = append(line, list.Oldest...)
		line = append(line, make([]byte, 40-len(line))...)
		if list.Beyond == nil {
			list.Beyond = list.Oldest
		}
		line = append(line, list.Beyond...)
		line = append(line, make([]byte, 48-len(line))...)
		if list.Fixed {
			line = binary.NativeEndian.AppendUint32(line, 1)
		}
		lines = append(lines, line)
	}
	if len(ring.Turns) > 0 {
		binary.NativeEndian.PutUint32(lines[0][40:], uint32(len(lines)))
		binary.NativeEndian.PutUint32(lines[0][44:], uint32(len(ring.Turns)))
	}
	for chunk := range slices.Chunk(ring.Turns, 16) {
		var line []byte
		for _, c := range chunk {
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

// putAsked lets a backend answer for the others of its service, from any port.
func (d *testDirector) putAsked(t testing.TB, s *testService, i int) {
	t.Helper()
	b, index := s.backends[i], s.first+uint32(i)
	d.put(t, "ask_backends", abi.AskBackend{Service: s.index, Address: abiAddress(b.address)}, index)
	if b.address.Is4() {
		d.put(t, "ranges4", abi.Range4{PrefixLen: 80, Segment: s.segment.Key(), Address: be32(b.address.As4()), Protocol: uint8(s.protocol), Reply: 1}, index)
	} else {
		d.put(t, "ranges6", abi.Range6{PrefixLen: 80 + 96, Segment: s.segment.Key(), Address: abiAddress(b.address), Protocol: uint8(s.protocol), Reply: 1}, index)
	}
}
