package observe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// Only a run of the program shows what a packet needs from a director's memory. So an observer runs
// it with what is known, and again for as long as a run asks for more.

// mostRounds is more than any packet needs: it asks for its flow, for what is remembered of the
// flow, for a flow of full NAT that this names, and for a flow of a backend on this host.
const mostRounds = 6

// Snapshot is what an observer runs in: the director's state, or an imagined one.
type Snapshot struct {
	Rings    []byte        // all lines
	Backends []abi.Backend // by index
	Settings abi.Settings
	Services map[uint32]Service // by index
	Live     map[string]*ebpf.Map
	Tables   map[string]*ebpf.Map // full NAT's tables that there are, by the maps of maps that have them
	Header   flows.Layout         // of full NAT's own
	Loads    map[uint32]abi.Load  // in place of the live ones; nil: there are none
	// Inside says at which VTEP a backend in a tenant's network is, and the network with the VNI on the wire; nil: no
	// backend is.
	Inside func(backend uint32) (vtep netip.Addr, wire model.Segment)
	// Wire is a network in VXLAN or Geneve with the VNI that it has on the wire; the zero value: it is not known.
	Wire func(model.Segment) model.Segment
	// Leaves says how packets leave for a backend: nexthop.Resolver.Leaves.
	Leaves func(ifindex uint32, mac model.MAC, names map[uint32]string) (hop model.MAC, by string, kernel bool)
}

// Service is a service with the indexes of its backends.
type Service struct {
	*model.TableService
	Indexes []uint32 // in the order of Backends
}

// ask runs a frame until the observer has everything that it asked for.
func (w *Snapshot) ask(x *Observer, frame []byte, ifindex int) (o observedObservation, out []byte, have copied, err error) {
	have = copied{}
	if w.hasSNAT() {
		if err := w.lend(have, observedMapSnatTables, keyOf32(0)); err != nil {
			return o, nil, nil, err
		}
	}
	if err := errors.Join(x.offerSNAT(w.hasSNAT()), x.copyBudgets(w.Live)); err != nil {
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
func (w *Snapshot) lendFor(have copied, p *observedPacket) error {
	var errs []error
	lend := func(name, key string) { errs = append(errs, w.lend(have, name, key)) }
	if p.has(observedPacketFlagPACKET_FRAGMENT_FIRST) || p.has(observedPacketFlagPACKET_FRAGMENT_LATER) {
		key := p.fragmentKey()
		lend(observedMapFragments, key)
		if first := have[mapKey{observedMapFragments, key}]; first != nil {
			w.lendNumber((*abi.Fragment)(unsafe.Pointer(&first[0])).Snat, lend)
		}
	}
	slot, header := w.slotOf(p)
	if slot != nil {
		w.lendForPolicy(have, p, slot, header, lend)
	}
	if header != nil && header.Flags&uint8(abi.RingFlagRING_MEMORY) != 0 {
		errs = append(errs, w.lendFlow(have, p))
	}
	w.lendShared(have, p, lend)
	if w.hasSNAT() {
		w.lendSNAT(p, slot, lend)
	}
	return errors.Join(errs...)
}

// hasSNAT says whether there is a table of full NAT.
func (w *Snapshot) hasSNAT() bool { return w.Tables[observedMapSnatTables] != nil }

// sharedNumber is SNAT_SHARED.
const sharedNumber = 1 << 31

// lendNumber copies the flow of full NAT with this number.
func (w *Snapshot) lendNumber(number uint32, lend func(name, key string)) {
	switch {
	case number&sharedNumber != 0:
		lend(observedMapSharedTables, keyOf32(number&^sharedNumber))
	case number >= uint32(flows.BucketPorts) && w.hasSNAT():
		lend(observedMapSnatTables, keyOf32(number/uint32(flows.BucketPorts)))
	}
}

// lendShared copies what other directors may have told of the packet's flow.
func (w *Snapshot) lendShared(have copied, p *observedPacket, lend func(name, key string)) {
	f := p.flow()
	end := abi.SnatEnd{Address: abi.AddressBytes(f.Destination), Port: abi.BigEndian16(f.DestinationPort), Protocol: f.Protocol, Ipv6: p.Flow.Ipv6}
	for name, key := range map[string]string{
		observedMapSharedClients: string(binary.NativeEndian.AppendUint64(nil, f.Hash(w.Settings.FlowSalt, model.AffinityFlow))),
		observedMapSharedEnds:    string(valueOf(&end)),
	} {
		if w.Tables[name] == nil {
			continue
		}
		lend(name, key)
		if number := have[mapKey{name, key}]; number != nil {
			w.lendNumber(binary.NativeEndian.Uint32(number), lend)
		}
	}
}

// sourceOf is the address and port that a flow of full NAT has.
func (w *Snapshot) sourceOf(have copied, number uint32) netip.AddrPort {
	if number&sharedNumber == 0 {
		return w.Header.Source(number)
	}
	value := have[mapKey{observedMapSharedTables, keyOf32(number &^ sharedNumber)}]
	if value == nil {
		return netip.AddrPort{}
	}
	e := (*abi.SnatShared)(unsafe.Pointer(&value[0]))
	return netip.AddrPortFrom(abi.AddressOf(e.Source, e.Ipv6 != 0), abi.BigEndian16(e.SourcePort))
}

// lendForPolicy copies what the service's policy decides by.
func (w *Snapshot) lendForPolicy(have copied, p *observedPacket, slot *abi.Slot, header *abi.RingHeader, lend func(name, key string)) {
	var asked []uint32
	switch model.Policy(header.Policy) {
	case model.P2C:
		asked = append(w.rowOf(p.Ring, slot), w.distinctTurns(p.Ring, header)...)
	case model.LeastConn:
		asked = w.distinctTurns(p.Ring, header)
	case model.RoundRobin:
		lend(observedMapNextTurns, keyOf32(header.Service))
	}
	for _, index := range asked[:min(len(asked), int(sparse[observedMapLoads]))] {
		if load, imagined := w.Loads[index]; imagined {
			have[mapKey{observedMapLoads, keyOf32(index)}] = valueOf(&load)
			continue
		}
		lend(observedMapLoads, keyOf32(index))
	}
}

// distinctTurns returns each backend that has turns once.
func (w *Snapshot) distinctTurns(ring uint32, header *abi.RingHeader) []uint32 {
	turns := slices.Clone(w.turnsOf(ring, header))
	slices.Sort(turns)
	return slices.Compact(turns)
}

// lendSNAT copies the buckets in which a flow of full NAT may be.
func (w *Snapshot) lendSNAT(p *observedPacket, slot *abi.Slot, lend func(name, key string)) {
	bucket := func(number uint32) { w.lendNumber(number, lend) }
	f := p.flow()
	for _, number := range w.Header.Choices(f) {
		bucket(number)
	}
	bucket(w.Header.ReplyTo(f))
	bucket(p.Snat)
	if slot == nil {
		return
	}
	// A backend on this host has another flow: see keep_local.
	for _, index := range w.rowOf(p.Ring, slot) {
		b := &w.Backends[index]
		if b.Flags&uint8(abi.BackendFlagBACKEND_LOCAL) == 0 || b.Flags&uint8(abi.BackendFlagBACKEND_SNAT) == 0 {
			continue
		}
		to := f
		to.Destination = abi.AddressOf(b.Address, f.Destination.Is6())
		if b.Port != 0 {
			to.DestinationPort = abi.BigEndian16(b.Port)
		}
		for _, number := range w.Header.Choices(to) {
			bucket(number)
		}
	}
}

// lendFlow copies the buckets in which flow memory may have a flow, or gives it a place.
func (w *Snapshot) lendFlow(have copied, p *observedPacket) error {
	for _, bucket := range w.bucketsOf(p) {
		if err := w.lend(have, observedMapFlowTable, bucket); err != nil {
			return err
		}
	}
	return nil
}

// bucketsOf are the keys of the buckets of a packet's flow: own_place.
func (w *Snapshot) bucketsOf(p *observedPacket) []string {
	f := p.flow()
	hash := f.PlaceHash(w.Settings.FlowSalt, p.Service-1)
	bucket := func(bits uint32) string { return keyOf32(uint32(uint64(bits) * uint64(w.Settings.FlowBuckets) >> 32)) }
	buckets := []string{bucket(uint32(hash >> 32)), bucket(uint32(hash)), bucket(uint32(hash >> 16))}
	if f.Source.Is4() {
		return buckets[:2]
	}
	return buckets
}

// remembered is the flow in what lendFlow has copied; nil: it is not there. It is the first that the
// program would find, but for a second place of the same flow.
func (w *Snapshot) remembered(have copied, p *observedPacket) *abi.FlowEntry {
	f := p.flow()
	for _, bucket := range w.bucketsOf(p) {
		if e := find(have[mapKey{observedMapFlowTable, bucket}], f, p.Service-1); e != nil {
			return e
		}
	}
	return nil
}

// find is the flow's entry in a bucket; nil: it has none there.
func find(bucket []byte, f model.Flow, service uint32) *abi.FlowEntry {
	if len(bucket) < int(unsafe.Sizeof(abi.FlowBucket{})) {
		return nil
	}
	places := (*abi.FlowBucket)(unsafe.Pointer(&bucket[0])).Places[:]
	memory := flows.Memory{Memory: bpfload.Memory[abi.FlowPlace]{Entries: places}}
	for e := range memory.All() {
		if e.Service == service && e.Source == abi.AddressBytes(f.Source) &&
			e.SourcePort == abi.BigEndian16(f.SourcePort) && e.DestinationPort == abi.BigEndian16(f.DestinationPort) {
			found := *e
			return &found
		}
	}
	return nil
}

// lend copies an entry of the director's maps, unless it is copied already.
func (w *Snapshot) lend(have copied, name, key string) error {
	at := mapKey{name, key}
	if _, done := have[at]; done {
		return nil
	}
	from := w.Live[name]
	if _, is := tables[name]; is {
		from = w.Tables[name]
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
		Segment: model.SegmentOf(p.Flow.Segment),
		Source:  abi.AddressOf(abi.Address{Bytes: p.Flow.Source.Bytes}, six), Destination: abi.AddressOf(abi.Address{Bytes: p.Flow.Destination.Bytes}, six),
		SourcePort: abi.BigEndian16(p.Flow.SourcePort), DestinationPort: abi.BigEndian16(p.Flow.DestinationPort), Protocol: p.Flow.Protocol,
	}
}

func (p *observedPacket) fragmentKey() string {
	key := abi.FragmentKey{Segment: p.Flow.Segment, Id: p.FragmentId, Source: abi.Address{Bytes: p.Flow.Source.Bytes},
		Destination: abi.Address{Bytes: p.Flow.Destination.Bytes}, Protocol: p.Flow.Protocol, Ipv6: p.Flow.Ipv6}
	return string(unsafe.Slice((*byte)(unsafe.Pointer(&key)), unsafe.Sizeof(key)))
}

// line returns a pointer to a line of the rings; nil: there is no such line.
func (w *Snapshot) line(n uint32) unsafe.Pointer {
	if at := uint64(n) * abi.LineSize; n != 0 && at+abi.LineSize <= uint64(len(w.Rings)) {
		return unsafe.Pointer(&w.Rings[at])
	}
	return nil
}

// slotOf is the slot that a packet has read of its ring, and the ring's header; nil: it has read
// none, as its backend was known or it was refused. A packet that has read only the owner is taken to have
// read the slot. A packet that a policy redirected has not read
// its slot either: for that one, slotOf is the slot whose row the flow would have had.
func (w *Snapshot) slotOf(p *observedPacket) (*abi.Slot, *abi.RingHeader) {
	header := (*abi.RingHeader)(w.line(p.Ring))
	if header == nil {
		return nil, nil
	}
	slot := abi.Slot{Owner: p.Slot.Owner, Next: p.Slot.Next}
	if slot != (abi.Slot{}) {
		return &slot, header
	}
	redirected := header.Flags&uint8(abi.RingFlagRING_REDIRECTED) != 0 && p.opens() && p.Backend != 0 && p.Snat == 0
	byOwner := header.Flags&uint8(abi.RingFlagRING_OWNERS) != 0 && header.Service == p.Service-1 && p.Backend != 0 && p.Snat == 0 &&
		!p.has(observedPacketFlagPACKET_FRAGMENT_LATER)
	if there := w.slotIn(p.Ring, header, p.flow()); (redirected || byOwner) && header.Size > 0 && there != nil {
		return there, header
	}
	return nil, nil
}

// slotIn is a copy of a flow's slot in a ring; nil: it has none.
func (w *Snapshot) slotIn(ring uint32, header *abi.RingHeader, f model.Flow) *abi.Slot {
	number := uint32(f.Hash(header.Salt, model.AffinityFrom(header.Affinity, header.Prefix4, header.Prefix6)) >> 32 * uint64(header.Size) >> 32)
	slots := w.line(ring + abi.HeaderLines + number/uint32(abi.SlotsPerLine))
	if slots == nil {
		return nil
	}
	slot := (*[abi.SlotsPerLine]abi.Slot)(slots)[number%uint32(abi.SlotsPerLine)]
	return &slot
}

// listOf is the list of a slot; nil: it has none.
func (w *Snapshot) listOf(ring uint32, slot *abi.Slot) *abi.Candidates {
	if slot.Next&abi.SlotList == 0 {
		return nil
	}
	return (*abi.Candidates)(w.line(ring + slot.Next&^abi.SlotList))
}

// rowOf are the backends of a slot in the order in which a new connection tries them.
func (w *Snapshot) rowOf(ring uint32, slot *abi.Slot) []uint32 {
	row := []uint32{slot.Owner}
	if list := w.listOf(ring, slot); list != nil {
		row = append(row, list.Index[:min(int(list.Count), len(list.Index))]...)
	} else if next := slot.Next &^ (abi.SlotList | abi.SlotSettling); next != 0 {
		row = append(row, next)
	}
	kept := row[:0]
	for _, index := range row {
		if index != 0 && int(index) < len(w.Backends) {
			kept = append(kept, index)
		}
	}
	return kept
}

// turnsOf are the backends among which the ring's policy chooses; nil: it does not choose.
func (w *Snapshot) turnsOf(ring uint32, header *abi.RingHeader) (all []uint32) {
	for i := range header.TurnCount {
		line := (*abi.Turns)(w.line(ring + header.Turns + i/uint32(abi.TurnsPerLine)))
		if line == nil {
			return all
		}
		if index := line.Index[i%uint32(abi.TurnsPerLine)]; int(index) < len(w.Backends) {
			all = append(all, index)
		}
	}
	return all
}

// ages are the positions of a row in the order in which an unknown connection tries them.
func (w *Snapshot) ages(ring uint32, slot *abi.Slot, beyond bool) []uint8 {
	list := w.listOf(ring, slot)
	switch {
	case list == nil:
		return []uint8{0, 1}
	case beyond:
		return list.Beyond[:min(int(list.Count)+1, len(list.Beyond))]
	}
	return list.Oldest[:min(int(list.Count)+1, len(list.Oldest))]
}

// explainSlot names the row of a flow in a ring.
func (w *Snapshot) explainSlot(ring uint32, slot *abi.Slot, f model.Flow) *model.ExplainedSlot {
	header := (*abi.RingHeader)(w.line(ring))
	if header == nil || header.Size == 0 {
		return nil
	}
	hash := f.Hash(header.Salt, model.AffinityFrom(header.Affinity, header.Prefix4, header.Prefix6))
	number := hash >> 32 * uint64(header.Size) >> 32
	e := &model.ExplainedSlot{Number: int(number), Of: int(header.Size), Settling: slot.Next&(abi.SlotList|abi.SlotSettling) == abi.SlotSettling}
	ages := w.ages(ring, slot, beyondBorder(header, hash>>32, number))
	for position, index := range w.rowOf(ring, slot) {
		c := model.ExplainedCandidate{State: model.BackendState(w.Backends[index].State)}
		c.Name, c.Backend = w.nameOf(index)
		for age, at := range ages {
			if int(at) == position {
				c.Age = age
			}
		}
		e.Candidates = append(e.Candidates, c)
	}
	return e
}

// beyondBorder is beyond_border.
func beyondBorder(header *abi.RingHeader, hash, number uint64) bool {
	if header.Older == 0 {
		return false
	}
	first := (number<<32 + uint64(header.Size) - 1) / uint64(header.Size)
	return hash*uint64(header.Older)>>32 != first*uint64(header.Older)>>32
}

// explainBefore is the slot in the ring before, for connections that are older than the
// service's affinity.
func (w *Snapshot) explainBefore(p *observedPacket, header *abi.RingHeader) *model.ExplainedSlot {
	if header.Before == 0 {
		return nil
	}
	ring := p.Ring + header.Before
	before := (*abi.RingHeader)(w.line(ring))
	if before == nil || before.Size == 0 {
		return nil
	}
	f := p.flow()
	slot := w.slotIn(ring, before, f)
	if slot == nil {
		return nil
	}
	return w.explainSlot(ring, slot, f)
}

// nameOf names a backend by its index.
func (w *Snapshot) nameOf(index uint32) (string, netip.AddrPort) {
	entry := &w.Backends[index]
	address := netip.AddrPortFrom(abi.AddressOf(entry.Address, entry.Flags&uint8(abi.BackendFlagBACKEND_IPV6) != 0), abi.BigEndian16(entry.Port))
	s := w.Services[entry.Service]
	if i := slices.Index(s.Indexes, index); i >= 0 {
		return s.Backends[i].Name, netip.AddrPortFrom(s.Backends[i].Address, s.Backends[i].Port)
	}
	return "", address
}
