package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
)

// Only a run of the program shows what a packet needs from a director's memory. So an observer runs
// it with what is known, and again for as long as a run asks for more.

// mostRounds is more than any packet needs: it asks for its flow, for what is remembered of the
// flow, for a flow of full NAT that this names, and for a flow of a backend on this host.
const mostRounds = 6

// snapshot is what an observer runs in: the director's state, or an imagined one.
type snapshot struct {
	rings    []byte            // all lines
	entries  []directorBackend // by index
	settings directorSettings
	services map[uint32]*service // by index
	onward   *onward
	live     map[string]*ebpf.Map
	snat     *ebpf.Map // full NAT's table; nil: there is none
	header   directorSnatHeader
	loads    map[uint32]directorLoad // in place of the live ones; nil: there are none
}

// ask runs a frame until the observer has everything that it asked for.
func (w *snapshot) ask(x *observer, frame []byte, ifindex int) (o observedObservation, out []byte, have copied, err error) {
	have = copied{}
	if w.snat != nil {
		if err := w.lend(have, snatTable, keyOf32(0)); err != nil {
			return o, nil, nil, err
		}
	}
	if err := errors.Join(x.offerSNAT(w.snat != nil), x.copyBudgets(w.live)); err != nil {
		return o, nil, nil, err
	}
	for range mostRounds {
		if err := x.remember(have); err != nil {
			return o, nil, nil, err
		}
		if o, out, err = x.run(frame, ifindex); err != nil {
			return o, nil, nil, err
		}
		before := len(have)
		if err := w.lendFor(have, &o.Packet); err != nil {
			return o, nil, nil, err
		}
		if len(have) == before {
			return o, out, have, nil
		}
	}
	return o, nil, nil, fmt.Errorf("the program asks for something else each of %d times", mostRounds)
}

// lendFor copies what the program may ask for about a packet.
func (w *snapshot) lendFor(have copied, p *observedPacket) error {
	var errs []error
	lend := func(name, key string) { errs = append(errs, w.lend(have, name, key)) }
	if p.has(observedPacketFlagPACKET_FRAGMENT_FIRST) || p.has(observedPacketFlagPACKET_FRAGMENT_LATER) {
		key := p.fragmentKey()
		lend(directorMapFragments, key)
		if first := have[mapKey{directorMapFragments, key}]; first != nil {
			if number := (*directorFragment)(unsafe.Pointer(&first[0])).Snat; number >= uint32(snatBucketPorts) {
				lend(snatTable, keyOf32(number/uint32(snatBucketPorts)))
			}
		}
	}
	slot, header := w.slotOf(p)
	if slot != nil {
		w.lendForPolicy(have, p, slot, header, lend)
	}
	if header != nil && header.Flags&uint8(directorRingFlagRING_MEMORY) != 0 {
		errs = append(errs, w.lendFlow(have, p))
	}
	if w.snat != nil {
		w.lendSNAT(p, slot, lend)
	}
	return errors.Join(errs...)
}

// lendForPolicy copies what the service's policy decides by.
func (w *snapshot) lendForPolicy(have copied, p *observedPacket, slot *directorSlot, header *directorRingHeader, lend func(name, key string)) {
	var asked []uint32
	switch model.Policy(header.Policy) {
	case model.P2C:
		asked = append(w.rowOf(p.Ring, slot), w.distinctTurns(p.Ring, header)...)
	case model.LeastConn:
		asked = w.distinctTurns(p.Ring, header)
	case model.RoundRobin:
		lend(directorMapNextTurns, keyOf32(header.Service))
	}
	for _, index := range asked[:min(len(asked), int(sparse[directorMapLoads]))] {
		if load, imagined := w.loads[index]; imagined {
			have[mapKey{directorMapLoads, keyOf32(index)}] = valueOf(&load)
			continue
		}
		lend(directorMapLoads, keyOf32(index))
	}
}

// distinctTurns returns each backend that has turns once.
func (w *snapshot) distinctTurns(ring uint32, header *directorRingHeader) []uint32 {
	turns := slices.Clone(w.turnsOf(ring, header))
	slices.Sort(turns)
	return slices.Compact(turns)
}

// lendSNAT copies the buckets in which a flow of full NAT may be.
func (w *snapshot) lendSNAT(p *observedPacket, slot *directorSlot, lend func(name, key string)) {
	bucket := func(number uint32) {
		if number >= uint32(snatBucketPorts) {
			lend(snatTable, keyOf32(number/uint32(snatBucketPorts)))
		}
	}
	f := p.flow()
	for _, number := range w.header.choices(f) {
		bucket(number)
	}
	bucket(w.header.replyTo(f))
	bucket(p.Snat)
	if slot == nil {
		return
	}
	// A backend on this host has another flow: see keep_local.
	for _, index := range w.rowOf(p.Ring, slot) {
		b := &w.entries[index]
		if b.Flags&uint8(directorBackendFlagBACKEND_LOCAL) == 0 || b.Flags&uint8(directorBackendFlagBACKEND_SNAT) == 0 {
			continue
		}
		to := f
		to.Destination = addressOf(b.Address, f.Destination.Is6())
		if b.Port != 0 {
			to.DestinationPort = bigEndian16(b.Port)
		}
		for _, number := range w.header.choices(to) {
			bucket(number)
		}
	}
}

// choices are the first numbers of the buckets in which a flow may be: snat_choose.
func (h *directorSnatHeader) choices(f model.Flow) []uint32 {
	hash := f.Hash(h.Salt, model.AffinityFlow)
	buckets, first, count := h.Ports/uint32(snatBucketPorts), uint32(0), h.Addresses4
	if f.Source.Is6() {
		first, count = h.Addresses4, h.Addresses6
	}
	if buckets*count == 0 {
		return nil
	}
	var numbers []uint32
	for _, half := range []uint64{hash >> 32, hash & 0xffffffff} {
		chosen := uint32(half * uint64(count*buckets) >> 32)
		numbers = append(numbers, h.number(first+chosen/buckets, f.Protocol, chosen%buckets*uint32(snatBucketPorts)))
	}
	return numbers
}

// number is a flow's number, given the port's place among the ports: snat_number.
func (h *directorSnatHeader) number(address uint32, protocol uint8, offset uint32) uint32 {
	kind := address * 2
	if model.Protocol(protocol) == model.UDP {
		kind++
	}
	return uint32(snatBucketPorts) + kind*h.Ports + offset
}

// replyTo is the number of the flow to which a packet to one of this director's addresses replies;
// 0: it is not a reply.
func (h *directorSnatHeader) replyTo(f model.Flow) uint32 {
	first, count := uint32(0), h.Addresses4
	if f.Source.Is6() {
		first, count = h.Addresses4, h.Addresses6
	}
	offset := uint32(f.DestinationPort) - h.PortsFirst
	for i := first; i < first+count; i++ {
		if h.Sources[i] == addressBytes(f.Destination) && offset < h.Ports {
			return h.number(i, f.Protocol, offset)
		}
	}
	return 0
}

// source is the address and port that a number stands for.
func (h *directorSnatHeader) source(number uint32, six bool) netip.AddrPort {
	if number < uint32(snatBucketPorts) || h.Ports == 0 {
		return netip.AddrPort{}
	}
	address, offset := (number-uint32(snatBucketPorts))/h.Ports/2, (number-uint32(snatBucketPorts))%h.Ports
	if int(address) >= len(h.Sources) {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addressOf(h.Sources[address], six), uint16(h.PortsFirst+offset))
}

// lendFlow copies what is remembered of a flow. The NIC chooses a packet's CPU by addresses and
// ports, and only that CPU has the flow. So its bucket is copied as every CPU's, and the other
// buckets are left out.
func (w *snapshot) lendFlow(have copied, p *observedPacket) error {
	f := p.flow()
	hash := f.Hash(w.settings.FlowSalt, model.AffinityFlow)
	bucket := uint32(hash >> 32 * uint64(w.settings.FlowBuckets) >> 32)
	if _, done := have[mapKey{directorMapFlows, keyOf32(bucket)}]; done {
		return nil
	}
	var youngest *directorFlowEntry
	var its []byte
	var tags []byte
	for cpu := range w.settings.FlowCpus {
		value, err := readEntry(w.live[directorMapFlows], keyOf32(cpu*w.settings.FlowBuckets+bucket))
		if err != nil {
			return fmt.Errorf("read flow memory: %w", err)
		}
		e := w.find(value, f, p.Service-1)
		if e == nil || youngest != nil && int32(e.Seen-youngest.Seen) <= 0 {
			continue
		}
		youngest, its = e, value
		if tags, err = readEntry(w.live[directorMapFlowTags], keyOf32(bucket*w.settings.FlowCpus+cpu)); err != nil {
			return fmt.Errorf("read tags of flow memory: %w", err)
		}
	}
	if its == nil { // an empty place for the flow, which a policy asks for before it chooses
		its = make([]byte, unsafe.Sizeof(directorFlowBucket{}))
	}
	for cpu := range w.settings.FlowCpus {
		have[mapKey{directorMapFlows, keyOf32(cpu*w.settings.FlowBuckets + bucket)}] = its
		have[mapKey{directorMapFlowTags, keyOf32(bucket*w.settings.FlowCpus + cpu)}] = tags
	}
	return nil
}

// remembered is what lendFlow has found; nil if it found nothing.
func (w *snapshot) remembered(have copied, p *observedPacket) *directorFlowEntry {
	f := p.flow()
	bucket := uint32(f.Hash(w.settings.FlowSalt, model.AffinityFlow) >> 32 * uint64(w.settings.FlowBuckets) >> 32)
	return w.find(have[mapKey{directorMapFlows, keyOf32(bucket)}], f, p.Service-1)
}

// find is the flow's entry in a bucket: flow_search.
func (w *snapshot) find(bucket []byte, f model.Flow, service uint32) *directorFlowEntry {
	if len(bucket) < int(unsafe.Sizeof(directorFlowBucket{})) {
		return nil
	}
	b := (*directorFlowBucket)(unsafe.Pointer(&bucket[0]))
	for i := range b.Entries {
		e := (*directorFlowEntry)(unsafe.Pointer(&b.Entries[i]))
		if e.State > uint8(directorFlowStateFLOW_CLAIMED) && e.Service == service && e.Source == addressBytes(f.Source) &&
			e.SourcePort == bigEndian16(f.SourcePort) && e.DestinationPort == bigEndian16(f.DestinationPort) {
			return e
		}
	}
	return nil
}

// lend copies an entry of the director's maps, unless it is copied already.
func (w *snapshot) lend(have copied, name, key string) error {
	at := mapKey{name, key}
	if _, done := have[at]; done {
		return nil
	}
	from := w.live[name]
	if name == snatTable {
		from = w.snat
	}
	value, err := readEntry(from, key)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	have[at] = value
	return nil
}

// readEntry reads an entry as it is in the kernel; nil: there is none.
func readEntry(m *ebpf.Map, key string) ([]byte, error) {
	value, err := m.LookupBytes([]byte(key))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	return value, err
}

// valueOf is a copy of a value as it is in the kernel.
func valueOf[T any](v *T) []byte {
	return slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)))
}

func keyOf32(n uint32) string { return string(binary.NativeEndian.AppendUint32(nil, n)) }

func (p *observedPacket) has(flag observedPacketFlag) bool { return p.Flags&uint8(flag) != 0 }

// flow is the packet's flow, as the program looks it up.
func (p *observedPacket) flow() model.Flow {
	six := p.Flow.Ipv6 != 0
	return model.Flow{
		Segment: segmentOf(p.Flow.Segment),
		Source:  addressOf(directorAddress(p.Flow.Source), six), Destination: addressOf(directorAddress(p.Flow.Destination), six),
		SourcePort: bigEndian16(p.Flow.SourcePort), DestinationPort: bigEndian16(p.Flow.DestinationPort), Protocol: p.Flow.Protocol,
	}
}

// segmentOf is the segment of a key.
func segmentOf(key uint32) model.Segment {
	return model.Segment{Kind: model.SegmentKind(key >> 24), ID: key & 0xffffff}
}

func (p *observedPacket) fragmentKey() string {
	key := directorFragmentKey{Segment: p.Flow.Segment, Id: p.FragmentId, Source: directorAddress(p.Flow.Source),
		Destination: directorAddress(p.Flow.Destination), Protocol: p.Flow.Protocol, Ipv6: p.Flow.Ipv6}
	return string(unsafe.Slice((*byte)(unsafe.Pointer(&key)), unsafe.Sizeof(key)))
}
