package datapath

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// Flow steering, as far as the program needs it (bpf/director/pick/steered.h): of which service the flows
// of a NIC's receive queues are, and which flows have rules. Which flows the NIC leads to a queue is the
// matter of package steering.

const (
	steeredQueues         = 256                    // STEERED_QUEUES
	steeredInterfacesBits = 4                      // STEERED_INTERFACES_BITS
	steeredInterfaces     = 8                      // half of the places, so that a factor is found at once
	steeredPlaces         = 2                      // STEERED_PLACES
	steeredHash           = uint64(0xffffff << 40) // above STEERED_HASH_SHIFT
	steeredEpochShift     = 24                     // STEERED_EPOCH_SHIFT
	steeredPlaceTaken     = uint64(1) << 23        // STEERED_PLACE
	steeredEnded          = uint64(1) << 22        // STEERED_ENDED
	steeredBackend        = steeredEnded - 1
	steeredTickShift      = 32         // STEERED_TICK_SHIFT
	steeredTickBits       = 8          // STEERED_TICK_BITS
	heavySample           = 64         // 1 << HEAVY_SAMPLE_BITS
	steeredNoService      = ^uint64(0) // STEERED_NO_SERVICE
)

// steers says whether NICs of this host may steer flows.
func (o Options) steers() bool { return o.SteeredFlows > 0 }

// A map has at least one element.
func (o Options) steeredQueues() uint32 {
	if !o.steers() {
		return 1
	}
	return steeredQueues << steeredInterfacesBits
}

// steeredPairs is a power of two, at least eight times the flows: of 400 flows one finds no place.
func (o Options) steeredPairs() uint32 { return 1 << bits.Len32(8*o.SteeredFlows-1) }

func (o Options) steeredWords() uint32 {
	if !o.steers() {
		return 1
	}
	return o.steeredPairs()
}

func (o Options) steeredPlaces() uint32 { return steeredPlaces * o.steeredWords() }

func (o Options) heavyLines() uint32 {
	if !o.steers() {
		return 1
	}
	return 1 << bits.Len32(min(max(o.SteeredFlows, leastHeavyLines), mostHeavyLines)-1) // a line has places for several flows
}

// Each CPU has its own.
const leastHeavyLines, mostHeavyLines = 1024, 4096

// SteeredQueue says of which service the flows are that a NIC leads to a receive queue. Without a service
// the queue is kept for flows to come.
type SteeredQueue struct {
	Interface int // its index
	Queue     uint32
	Service   model.ServiceID
}

// kept says whether a queue has no service yet.
func (q SteeredQueue) kept() bool { return q.Service == model.ServiceID{} }

// SteeredFlow is a flow that has a rule.
type SteeredFlow struct {
	Service model.ServiceID
	Client  netip.AddrPort
}

// queueID names a receive queue.
type queueID struct {
	link  int // index of the interface
	queue uint32
}

// steering is what the program knows of receive queues and of flows that have rules.
type steering struct {
	queues bpfload.Memory[abi.SteeredQueue]
	words  bpfload.Memory[abi.SteeredWords]
	flows  bpfload.Memory[abi.SteeredFlow]
	data   bpfload.Memory[steeringData]
	rests  map[steeredPlace]time.Time // since when places are free that a packet may still look at
	now    func() time.Time
	sample struct { // to read it into
		numbers []uint32
		lines   []abi.HeavyLine // by number and CPU
	}
}

// steeringData is the section of steered_factor, steered_mask, heavy_mask and steered_keys.
type steeringData struct {
	Factor, Mask, Heavy uint32
	_                   uint32
	Keys                [2]uint64
}

// steeredPlace is a place of a queue or a flow.
type steeredPlace struct {
	place uint32
	queue bool
}

func (s *steering) open(k *kernel, o Options) (err error) {
	s.rests, s.now = map[steeredPlace]time.Time{}, time.Now
	if s.queues, err = bpfload.Map[abi.SteeredQueue](k.SteeredQueues); err != nil {
		return err
	}
	if s.words, err = bpfload.Map[abi.SteeredWords](k.SteeredWords); err != nil {
		return err
	}
	if s.flows, err = bpfload.Map[abi.SteeredFlow](k.SteeredFlows); err != nil {
		return err
	}
	if s.data, err = bpfload.Map[steeringData](k.all[abi.Steering]); err != nil || !o.steers() {
		return err
	}
	atomic.StoreUint32(&s.data.Entries[0].Mask, o.steeredPairs()-1)
	atomic.StoreUint32(&s.data.Entries[0].Heavy, o.heavyLines()-1)
	for i := range s.data.Entries[0].Keys {
		if key := &s.data.Entries[0].Keys[i]; *key == 0 { // else an earlier process has chosen it
			atomic.StoreUint64(key, rand.Uint64()|1)
		}
	}
	for i := range s.flows.Entries {
		if !k.adopted {
			break
		}
		// An earlier process may have freed places just now, or ended while it captured: see forgetSteering.
		if atomic.AndUint64(s.word(uint32(i)), steeredFlowLeft) == 0 {
			s.rests[steeredPlace{uint32(i), false}] = s.now()
		}
	}
	return nil
}

func (s *steering) close() error {
	return errors.Join(s.queues.Close(), s.words.Close(), s.flows.Close(), s.data.Close())
}

// word is what the program knows of the flow of a place.
func (s *steering) word(place uint32) *uint64 {
	return &s.words.Entries[place/steeredPlaces].Word[place%steeredPlaces]
}

// placeOf is steered_place, with the queue.
func placeOf(q queueID, factor uint32) uint32 {
	return uint32(q.link)*factor>>(32-steeredInterfacesBits)*steeredQueues + q.queue
}

// factorFor returns a factor by which each interface has a place of its own; 0: there are too many.
func factorFor(links map[int]bool) uint32 {
	if len(links) > steeredInterfaces {
		return 0
	}
	for factor := uint32(0x9e3779b1); ; factor = factor*0x2545f491 | 1 {
		taken := map[uint32]bool{}
		for link := range links {
			taken[placeOf(queueID{link: link}, factor)] = true
		}
		if len(taken) == len(links) {
			return factor
		}
	}
}

// Steerable says why NICs must not steer a service's flows; empty: they may.
func Steerable(s *model.TableService) string {
	switch {
	case s.Port.First != s.Port.Last:
		return "it has more than one port"
	case s.Segment != model.Segment{}:
		return "it is in a segment, and rules do not match tags"
	case len(s.QUIC) > 0:
		return "connection IDs name its backends"
	case s.Affinity != model.AffinityFlow && s.Affinity != model.AffinitySourceIP:
		return "its affinity is " + s.Affinity.String()
	case len(s.SourceRanges) > 0:
		return "it has source-ranges, which are checked packet by packet"
	case s.KernelSources:
		return "it has kernel-sources, which are checked packet by packet"
	}
	for i := range s.Backends {
		switch b := &s.Backends[i]; {
		case b.Mode == model.GUE:
			return "packets in gue carry a row, which the slot has"
		case b.SNAT:
			return "full NAT translates each flow in another way"
		case b.Redirect:
			return "its connections are handed over"
		case b.Host.IsValid():
			return "its backends are pods"
		}
	}
	return ""
}

// ErrNotSteering says that flows cannot be steered.
var ErrNotSteering = errors.New("this director was opened without steering, or has no table yet")

// Steer makes the program follow these flows by these receive queues, and no others. NICs must have no rule
// to a queue that is not listed. Flows that are left over are returned: there is no place for them, or
// their service is not here or must not be steered. Which backend a flow has, its packets find out.
func (d *Datapath) Steer(queues []SteeredQueue, flows []SteeredFlow) (left []SteeredFlow, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.options.steers() || !d.begun || d.closed() {
		return nil, ErrNotSteering
	}
	links := map[int]bool{}
	for _, q := range queues {
		if q.Queue >= steeredQueues {
			return nil, fmt.Errorf("interface %d: queue %d is beyond the first %d", q.Interface, q.Queue, steeredQueues)
		}
		links[q.Interface] = true
	}
	if err := d.placeInterfaces(links); err != nil {
		return nil, err
	}
	wanted := map[uint32]abi.SteeredQueue{}
	for _, q := range queues {
		wanted[placeOf(queueID{q.Interface, q.Queue}, d.steering.data.Entries[0].Factor)] = d.steeredEntry(q)
	}
	d.clearQueues(func(place uint32, at *abi.SteeredQueue) bool { return sameQueue(at, wanted[place]) })
	d.leaveQueues(func(place uint32) bool { return wanted[place].Interface != 0 })
	keys := map[steeredKey]bool{}
	for _, f := range flows {
		key, known := d.steeredKey(f)
		keys[key] = true
		if !known {
			left = append(left, f)
		}
	}
	d.clearFlows(func(f *abi.SteeredFlow) bool { return keys[keyOfFlow(f)] })
	for _, f := range flows {
		if key, known := d.steeredKey(f); known && !d.steering.addFlow(key) {
			left = append(left, f)
		}
	}
	for place, e := range wanted {
		d.steering.writeQueue(place, e)
	}
	return left, nil
}

var errTooManyNICs = fmt.Errorf("flows are steered on more than %d interfaces", steeredInterfaces)

// placeInterfaces gives each interface a place of its own for its queues.
func (d *Datapath) placeInterfaces(links map[int]bool) error {
	factor, data := factorFor(links), &d.steering.data.Entries[0]
	if factor == 0 {
		return errTooManyNICs
	}
	if data.Factor == factor {
		return nil
	}
	d.clearQueues(func(uint32, *abi.SteeredQueue) bool { return false })
	d.leaveQueues(func(uint32) bool { return false })
	if err := d.readers.wait(); err != nil {
		return err
	}
	atomic.StoreUint32(&data.Factor, factor)
	return nil
}

// steeredEntry is the entry of a queue. It has no service if that is not here, or must not be steered.
func (d *Datapath) steeredEntry(q SteeredQueue) abi.SteeredQueue {
	s := d.services[keyOfID(q.Service)]
	if q.kept() || s == nil || s.desired == nil || Steerable(s.desired) != "" {
		return abi.SteeredQueue{Key: steeredNoService, Interface: uint32(q.Interface)}
	}
	key, _ := frontOf(s.endpoint())
	return abi.SteeredQueue{Address: key.Address, Key: key.Key, Salt: s.desired.Salt, Affinity: s.desired.Affinity.Kind(),
		L2dsr: l2dsrOnly(s.desired), Shortest: shortest(s.key), Interface: uint32(q.Interface), Service: s.index}
}

// shortest is the length of the shortest IP packet with the headers of a service's flow.
func shortest(k serviceKey) uint16 {
	length := uint16(20)
	if k.vip.Is6() {
		length = 40
	}
	switch k.protocol {
	case model.TCP:
		return length + 20
	case model.SCTP:
		return length + 12
	}
	return length + 8
}

// l2dsrOnly is 1 if all backends are in l2dsr.
func l2dsrOnly(s *model.TableService) uint8 {
	for i := range s.Backends {
		if s.Backends[i].Mode != model.L2DSR {
			return 0
		}
	}
	return 1
}

// steeredKey is what a flow's place has of it.
type steeredKey struct {
	address [2]uint64
	port    uint16 // as in memory
	service uint32
}

func keyOfFlow(f *abi.SteeredFlow) steeredKey { return steeredKey{f.Address, f.Port, f.Service} }

func (d *Datapath) steeredKey(f SteeredFlow) (k steeredKey, known bool) {
	s := d.services[keyOfID(f.Service)]
	client := f.Client.Addr()
	if s == nil || s.desired == nil || Steerable(s.desired) != "" || client.Is6() != s.key.vip.Is6() || d.refused.mayRefuse(client) {
		return k, false
	}
	return steeredKey{addressWords(client), abi.BigEndian16(f.Client.Port()), s.index}, true
}

// clearQueues lets packets of queues take the usual way. The queues are kept.
func (d *Datapath) clearQueues(stays func(place uint32, at *abi.SteeredQueue) bool) {
	for i := range d.steering.queues.Entries {
		at := &d.steering.queues.Entries[i]
		if at.Interface != 0 && at.Key != steeredNoService && !stays(uint32(i), at) {
			atomic.StoreUint64(&at.Key, steeredNoService)
			d.steering.rests[steeredPlace{uint32(i), true}] = d.steering.now()
		}
	}
}

// leaveQueues leaves queues that have no service to others.
func (d *Datapath) leaveQueues(stays func(place uint32) bool) {
	for i := range d.steering.queues.Entries {
		if at := &d.steering.queues.Entries[i]; at.Interface != 0 && !stays(uint32(i)) {
			atomic.StoreUint32(&at.Interface, 0)
		}
	}
}

// clearFlows lets packets of flows take the usual way.
func (d *Datapath) clearFlows(stays func(f *abi.SteeredFlow) bool) {
	for i := range d.steering.flows.Entries {
		at, word := &d.steering.flows.Entries[i], d.steering.word(uint32(i))
		if atomic.LoadUint64(word) != 0 && !stays(at) {
			atomic.StoreUint64(word, 0)
			d.steering.rests[steeredPlace{uint32(i), false}] = d.steering.now()
		}
	}
}

// keepSteering lets packets take the usual way whose service is gone or must not be steered any more, or
// whose client has become a source that has to be looked up.
func (d *Datapath) keepSteering(all []*service) {
	if !d.options.steers() {
		return
	}
	stay := make(map[uint32]bool, len(all))
	for _, s := range all {
		if Steerable(s.desired) == "" {
			stay[s.index] = true
		}
	}
	d.clearQueues(func(_ uint32, at *abi.SteeredQueue) bool { return stay[at.Service] })
	d.clearFlows(func(f *abi.SteeredFlow) bool {
		return stay[f.Service] && !d.refused.mayRefuse(wordsAddress(f.Address, true)) // the bits are the same for both families
	})
}

// What is left of a word that names no backend any more. Of a connection that has ended that is kept until its
// SYN comes, unless another program has run in between, which notes no SYN.
const (
	steeredFlowLeft = steeredHash | steeredPlaceTaken
	steeredAnyLeft  = steeredFlowLeft | steeredEnded
)

// forgetSteering has packets find out anew which backends flows have.
func (d *Datapath) forgetSteering(left uint64) {
	for i := range d.steering.flows.Entries {
		atomic.AndUint64(d.steering.word(uint32(i)), left)
	}
}

// wake forgets places that have rested. What rests now is not written: a packet may still look at it.
func (s *steering) wake() {
	maps.DeleteFunc(s.rests, func(_ steeredPlace, since time.Time) bool { return s.now().Sub(since) >= rest })
}

// sameQueue says whether an entry is for the same, whatever it has counted.
func sameQueue(at *abi.SteeredQueue, e abi.SteeredQueue) bool {
	e.Packets, e.Bytes, e.Usual, e.UsualBytes, e.Followed = at.Packets, at.Bytes, at.Usual, at.UsualBytes, at.Followed
	return *at == e
}

// writeQueue writes the entry of a queue that has no service. One that rests gets its service with a later
// call.
func (s *steering) writeQueue(place uint32, e abi.SteeredQueue) {
	at := &s.queues.Entries[place]
	if at.Interface != 0 && at.Key != steeredNoService {
		return
	}
	s.wake()
	link, key := e.Interface, e.Key
	if _, rests := s.rests[steeredPlace{place, true}]; rests {
		atomic.StoreUint64(&at.Key, steeredNoService)
	} else {
		// No packet is of the key that the entry has until all the rest of it is written. Counts go on.
		atomic.StoreUint64(&at.Key, steeredNoService)
		at.Address, at.Service, at.Affinity, at.L2dsr, at.Shortest, at.Salt = e.Address, e.Service, e.Affinity, e.L2dsr, e.Shortest, e.Salt
		atomic.StoreUint64(&at.Key, key)
	}
	atomic.StoreUint32(&at.Interface, link)
}

// addFlow writes a flow; false: there is no place for it.
func (s *steering) addFlow(k steeredKey) bool {
	s.wake()
	first, half := s.firstPlace(k), s.hash(k)&steeredHash
	free := -1
	for i := range steeredPlaces {
		at := &s.flows.Entries[first+uint32(i)]
		_, rests := s.rests[steeredPlace{first + uint32(i), false}]
		word := atomic.LoadUint64(s.word(first + uint32(i)))
		switch used := word != 0; {
		case used && keyOfFlow(at) == k:
			return true
		case used && word&steeredHash == half:
			return false // packets would take it for the other flow
		case !used && !rests:
			free = i
		}
	}
	if free < 0 {
		return false
	}
	place := first + uint32(free)
	s.flows.Entries[place] = abi.SteeredFlow{Address: k.address, Port: k.port, Service: k.service}
	atomic.StoreUint64(s.word(place), half|steeredPlaceTaken)
	return true
}

// hash is steered_hash.
func (s *steering) hash(k steeredKey) uint64 {
	keys := &s.data.Entries[0].Keys
	return model.HashFinish(k.address[0]*keys[0]+k.address[1]*keys[1], uint64(k.port)|uint64(k.service)<<32)
}

// firstPlace is where find_steered_flow begins to look for a flow.
func (s *steering) firstPlace(k steeredKey) uint32 {
	return uint32(s.hash(k)) & s.data.Entries[0].Mask * steeredPlaces
}

// HeavyFlow is a flow with many packets since the last look.
type HeavyFlow struct {
	SteeredFlow
	Steered bool   // it has a rule
	Packets uint64 // estimated by a sample
	Bytes   uint64
	ByRule  uint64 // packets that came by a queue of their service
}

// HeavyFlows returns the flows that had the most packets since the last call, without those that had fewer than
// the least, and all that have rules. It is to be called every second.
func (d *Datapath) HeavyFlows(least float64) ([]HeavyFlow, error) {
	sample, err := d.readSample()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.options.steers() || d.closed() {
		return nil, ErrNotSteering
	}
	d.nameIndexes()
	found := map[SteeredFlow]*HeavyFlow{}
	at := func(f SteeredFlow) *HeavyFlow {
		if found[f] == nil {
			found[f] = &HeavyFlow{SteeredFlow: f}
		}
		return found[f]
	}
	for i := range sample {
		s := &sample[i]
		if s.ByRule == 0 && float64(s.Packets-s.Taken)*heavySample < least {
			continue // a flood has a flow for each packet
		}
		// The sample is cleared while packets are counted: a place may have half of each.
		if f, known := d.nameHeavy(s); known && s.Taken <= s.Packets {
			of := at(f)
			of.Packets += uint64(s.Packets-s.Taken) * heavySample
			of.Bytes += s.Bytes * heavySample
			of.ByRule += uint64(s.ByRule) * heavySample
		}
	}
	for _, f := range d.steeredFlows() {
		at(f).Steered = true
	}
	all := make([]HeavyFlow, 0, len(found))
	for _, f := range found {
		all = append(all, *f)
	}
	return all, nil
}

// readSample returns the samples of all CPUs, and clears them.
func (d *Datapath) readSample() (sample []abi.HeavyFlow, err error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count CPUs: %w", err)
	}
	size := int(d.options.heavyLines())
	if d.steering.sample.numbers == nil {
		d.steering.sample.numbers, d.steering.sample.lines = make([]uint32, size), make([]abi.HeavyLine, size*cpus)
	}
	numbers, all := d.steering.sample.numbers, d.steering.sample.lines
	var cursor ebpf.MapBatchCursor
	n, err := d.kernel.HeavyFlows.BatchLookup(&cursor, numbers, all, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // that is the end
		return nil, fmt.Errorf("read the sample of flows: %w", err)
	}
	for i, number := range numbers[:n] {
		lines, empty := all[i*cpus:(i+1)*cpus], true
		for _, line := range lines {
			for _, f := range line.At {
				if f.Backend != 0 {
					sample, empty = append(sample, f), false
				}
			}
		}
		if empty {
			continue
		}
		clear(lines)
		if err := d.kernel.HeavyFlows.Update(number, lines, ebpf.UpdateAny); err != nil {
			return nil, fmt.Errorf("clear the sample of flows: %w", err)
		}
	}
	return sample, nil
}

// nameHeavy names a flow of the sample; false: its service is gone.
func (d *Datapath) nameHeavy(at *abi.HeavyFlow) (SteeredFlow, bool) {
	six := at.Ipv6 != 0
	e := endpoint{at.Segment, abi.AddressOf(at.Destination, six), at.Protocol, abi.BigEndian16(at.DestinationPort)}
	s := d.names.services[d.have.services[e]]
	if s == nil || s.endpoint() != e || s.key.protocol == model.SCTP { // of which NICs take no rules
		return SteeredFlow{}, false
	}
	return SteeredFlow{s.key.id(), netip.AddrPortFrom(abi.AddressOf(at.Source, six), abi.BigEndian16(at.SourcePort))}, true
}

func (d *Datapath) nameSteered(s *service, at *abi.SteeredFlow) SteeredFlow {
	return SteeredFlow{s.key.id(), netip.AddrPortFrom(wordsAddress(at.Address, s.key.vip.Is6()), abi.BigEndian16(at.Port))}
}

// SteeredPackets is how many packets have gone to their backends by the table of steered flows, since the maps
// were made.
func (d *Datapath) SteeredPackets() (packets uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.options.steers() || d.closed() {
		return 0
	}
	for i := range d.steering.queues.Entries {
		at := &d.steering.queues.Entries[i]
		packets += byTable(at).packets + atomic.LoadUint64(&at.Followed)
	}
	return packets
}

// SteeredFlows returns the flows that the program knows to have rules: those of an earlier process, too, after
// the first Set.
func (d *Datapath) SteeredFlows() []SteeredFlow {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.options.steers() || d.closed() {
		return nil
	}
	d.nameIndexes()
	return d.steeredFlows()
}

func (d *Datapath) steeredFlows() (all []SteeredFlow) {
	for i := range d.steering.flows.Entries {
		at := &d.steering.flows.Entries[i]
		if s := d.names.services[at.Service]; s != nil && atomic.LoadUint64(d.steering.word(uint32(i))) != 0 {
			all = append(all, d.nameSteered(s, at))
		}
	}
	return all
}
