package datapath

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// sharedNAT has full NAT's flows of other directors' addresses, and of this director's own where the
// program would not find them: see bpf/director/nat/snat_share.h. The table is made when the first
// flow is told, and grows. The indexes are made from it when the process begins.
type sharedNAT struct {
	memory  bpfload.Memory[abi.SnatShared] // of the table
	clients *ebpf.Map                      // numbers by the hash of the flow as its client sees it
	ends    *ebpf.Map                      // numbers by address and port
	places  map[abi.SnatEnd]uint32         // in the table
	sources map[netip.Addr]int             // how many flows have an address
	fresh   int                            // flows that may be of a flood, at most: some of them are proved since the last sweep
	own     map[uint64]uint32              // numbers in the director's own table, as in clients
	free    []uint32                       // places
	rests   []restingPlace                 // the oldest first

	unindexed bool           // the table has grown, and its indexes have not
	waits     time.Time      // until then no other try to grow is made
	again     []abi.ToldSnat // flows of this director's that the others have to be told again
	clashed   time.Time      // when a clash was logged
	failed    time.Time      // when it was logged that there is no room
}

// restingPlace is one that a program may still be reading.
type restingPlace struct {
	place uint32
	since time.Time
}

const (
	sharedNumber = 1 << 31 // SNAT_SHARED
	sharedFirst  = 1 << 12 // flows that a new table has room for
	sharedRest   = time.Second
	sharedPause  = 5 * time.Second // after the table could not grow
	sharedFresh  = 4               // this part of the largest table may have fresh flows
)

// number is the number of the flow in a place of the table.
func (s *sharedNAT) number(place uint32) uint32 { return sharedNumber | place }

// openShared takes up the table that an earlier process has left. Flows that are outside of their
// buckets in the director's own table are found, too.
func (d *Datapath) openShared() error {
	d.shared = sharedNAT{places: map[abi.SnatEnd]uint32{}, sources: map[netip.Addr]int{}, own: map[uint64]uint32{}}
	now, err := flows.Clock()
	if err != nil {
		return err
	}
	table, err := d.kernel.sharedTable.used()
	if err != nil {
		return err
	}
	if table != nil {
		defer table.Close()
		if d.shared.memory, err = bpfload.Map[abi.SnatShared](table); err != nil {
			return err
		}
	}
	for i := range d.shared.memory.Entries {
		e := &d.shared.memory.Entries[i]
		if flows.AtOneMoment(&e.Flow).State <= uint8(abi.SnatStateSNAT_CLAIMED) {
			atomic.StoreUint64(flows.NATWord(&e.Flow), 0)
			d.shared.free = append(d.shared.free, uint32(i))
			continue
		}
		d.keepHash(&e.Flow, clientOfShared(e))
		d.shared.occupy(e, uint32(i))
	}
	if err := d.findOutside(now); err != nil {
		return err
	}
	if len(d.shared.places)+len(d.shared.own) == 0 {
		return nil
	}
	return d.indexShared()
}

// keepHash gives a flow its hash by this director's salt, which is another one only if what it
// remembers of flows is lost.
func (d *Datapath) keepHash(e *abi.SnatFlow, client model.Flow) {
	if hash := uint32(d.clientHash(client)); e.Hash != hash {
		e.Hash = hash
	}
}

// claimLasts is longer than a place is ever being written, in units of the table's clock.
const claimLasts = 10

// findOutside finds the flows that are outside of their buckets in the director's own table, and
// frees places that a process was writing when it was killed.
func (d *Datapath) findOutside(now uint32) error {
	table, err := d.kernel.mapNAT()
	if err != nil || table == nil {
		return err
	}
	for i := range table.Flows {
		e, there := table.Read(i)
		number := uint32(flows.BucketPorts + i)
		protocol, ipv6 := table.Kind(number, &e)
		f := flows.ClientFlow(&e, protocol, ipv6)
		switch {
		case e.State == uint8(abi.SnatStateSNAT_CLAIMED) && now-e.Seen > claimLasts:
			atomic.CompareAndSwapUint64(flows.NATWord(&table.Flows[i]), *flows.NATWord(&e), 0)
		case there && !inBuckets(table, f, number):
			d.keepHash(&table.Flows[i], f)
			d.shared.own[d.clientHash(f)] = number
		}
	}
	return table.Close()
}

// carryNAT puts the flows of the director's table into the one that takes its place, as far as that
// has their addresses and ports: other directors go on with them, so no new flow may get these.
func (d *Datapath) carryNAT(to *flows.NATTable) error {
	from, err := d.kernel.mapNAT()
	if err != nil || from == nil {
		return err
	}
	for i := range from.Flows {
		e, there := from.Read(i)
		number := uint32(flows.BucketPorts + i)
		protocol, ipv6 := from.Kind(number, &e)
		client := flows.ClientFlow(&e, protocol, ipv6)
		place := to.PlaceOf(from.Source(number), protocol)
		if !there || place == 0 {
			continue
		}
		if e.Hash = uint32(d.clientHash(client)); inBuckets(to, client, place) {
			e.Hash = uint32(client.Hash(to.Salt, model.AffinityFlow))
		}
		to.Flows[int(place)-flows.BucketPorts] = e
	}
	return from.Close()
}

// foundOutside finds the flows that are outside of their buckets in the director's own table, which is
// another one now or gone. Flows of other directors' addresses that are this one's now go there.
func (d *Datapath) foundOutside() error {
	s := &d.shared
	clear(s.own)
	now, err := flows.Clock()
	if err != nil {
		return err
	}
	if err := d.findOutside(now); err != nil {
		return err
	}
	if s.clients == nil && len(s.own) == 0 {
		return nil
	}
	if err := d.indexShared(); err != nil {
		return err
	}
	table, err := d.kernel.mapNAT()
	if err != nil || table == nil {
		return err
	}
	for end, place := range maps.Clone(s.places) {
		e := &s.memory.Entries[place]
		if number := table.PlaceOf(ownOf(e), model.Protocol(e.Protocol)); number != 0 {
			_, failed := d.takeOwn(table, number, flows.AtOneMoment(&e.Flow), clientOfShared(e), now)
			err = errors.Join(err, failed, d.freeShared(end, place))
		}
	}
	return errors.Join(err, table.Close())
}

// inBuckets says whether a flow is in one of the buckets in which the program looks for it.
func inBuckets(table *flows.NATTable, f model.Flow, number uint32) bool {
	return slices.ContainsFunc(table.Choices(f), func(first uint32) bool {
		return first <= number && number < first+uint32(flows.BucketPorts)
	})
}

// clientHash is the key of clients: find_shared.
func (d *Datapath) clientHash(f model.Flow) uint64 {
	return f.Hash(d.written.FlowSalt, model.AffinityFlow)
}

func clientOfShared(e *abi.SnatShared) model.Flow {
	return flows.ClientFlow(&e.Flow, model.Protocol(e.Protocol), e.Ipv6 != 0)
}

// endOf is the address and port of a flow.
func endOf(e *abi.SnatShared) abi.SnatEnd {
	return abi.SnatEnd{Address: e.Source, Port: e.SourcePort, Protocol: e.Protocol, Ipv6: e.Ipv6}
}

// indexShared makes both indexes anew and switches them in. They have room for all flows of both
// tables, so a flow that has a place always has one in an index.
func (d *Datapath) indexShared() error {
	s := &d.shared
	own, err := d.kernel.mapNAT()
	if err != nil {
		return err
	}
	room, places := uint32(len(s.memory.Entries)), uint32(0)
	if own != nil {
		places = uint32(len(own.Flows))
		defer own.Close()
	}
	clients, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: max(1, room+places), Flags: unix.BPF_F_NO_PREALLOC})
	if err != nil {
		return fmt.Errorf("create an index of shared flows: %w", err)
	}
	ends, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: uint32(unsafe.Sizeof(abi.SnatEnd{})), ValueSize: 4, MaxEntries: max(1, room), Flags: unix.BPF_F_NO_PREALLOC})
	if err != nil {
		return errors.Join(fmt.Errorf("create an index of shared flows: %w", err), clients.Close())
	}
	if err := errors.Join(fillIndex(clients, d.numbersByClient(own)), fillIndex(ends, s.numbersByEnd())); err != nil {
		return errors.Join(err, clients.Close(), ends.Close())
	}
	if err := errors.Join(d.kernel.SharedClients.Put(uint32(0), clients), d.kernel.SharedEnds.Put(uint32(0), ends)); err != nil {
		return errors.Join(fmt.Errorf("switch indexes of shared flows: %w", err), clients.Close(), ends.Close())
	}
	s.closeIndexes()
	s.clients, s.ends, s.unindexed = clients, ends, false
	return nil
}

// fillIndex writes an index in few system calls.
func fillIndex[Key comparable](index *ebpf.Map, numbers map[Key]uint32) error {
	const atOnce = 1 << 14
	keys, values := make([]Key, 0, atOnce), make([]uint32, 0, atOnce)
	flush := func() error {
		if len(keys) == 0 {
			return nil
		}
		_, err := index.BatchUpdate(keys, values, nil)
		keys, values = keys[:0], values[:0]
		return wrapped("index shared flows", err)
	}
	for key, number := range numbers {
		keys, values = append(keys, key), append(values, number)
		if len(keys) == atOnce {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// numbersByClient is what clients has to have. Of several flows of one client it has the one that
// precedes.
func (d *Datapath) numbersByClient(own *flows.NATTable) map[uint64]uint32 {
	s := &d.shared
	numbers := maps.Clone(s.own)
	for _, place := range s.places {
		e := &s.memory.Entries[place]
		hash := d.clientHash(clientOfShared(e))
		if number, has := numbers[hash]; !has || !precedes(d.flowAt(own, number), flows.AtOneMoment(&e.Flow)) {
			numbers[hash] = sharedNumber | place
		}
	}
	return numbers
}

func (s *sharedNAT) numbersByEnd() map[abi.SnatEnd]uint32 {
	numbers := make(map[abi.SnatEnd]uint32, len(s.places))
	for end, place := range s.places {
		numbers[end] = sharedNumber | place
	}
	return numbers
}

// flowAt is the flow with a number; of its own table's a director may have none.
func (d *Datapath) flowAt(own *flows.NATTable, number uint32) abi.SnatFlow {
	if number&sharedNumber != 0 {
		return flows.AtOneMoment(&d.shared.memory.Entries[number&^sharedNumber].Flow)
	}
	if own == nil {
		return abi.SnatFlow{}
	}
	e, _ := own.Read(int(number) - flows.BucketPorts)
	return e
}

// precedes says whether packets of a client that has two flows find this one, and not the other: a
// fresh one may be of a flood, and of two others the client has begun the younger one later.
func precedes(f, other abi.SnatFlow) bool {
	if isFresh(&f) != isFresh(&other) {
		return isFresh(&other)
	}
	return int32(f.Seen-other.Seen) > 0
}

// wrapped says what was being done when an error came; nil: none has.
func wrapped(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func (s *sharedNAT) closeIndexes() {
	for _, m := range []*ebpf.Map{s.clients, s.ends} {
		if m != nil {
			m.Close()
		}
	}
	s.clients, s.ends = nil, nil
}

func (s *sharedNAT) close() error {
	s.closeIndexes()
	return s.memory.Close()
}

// indexClient lets the program find a flow by its client, unless another flow of the client precedes it.
func (d *Datapath) indexClient(own *flows.NATTable, number uint32, client model.Flow) error {
	hash := d.clientHash(client)
	var other uint32
	err := d.shared.clients.Lookup(hash, &other)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	if err == nil && other != number && precedes(d.flowAt(own, other), d.flowAt(own, number)) {
		return nil
	}
	return d.shared.clients.Put(hash, number)
}

// sharedRoom returns a place in the table, which grows as far as director.limits.flows allows.
func (d *Datapath) sharedRoom() (place uint32, found bool, err error) {
	s := &d.shared
	if time.Now().Before(s.waits) {
		return 0, false, nil
	}
	if s.unindexed || s.clients == nil && len(s.memory.Entries) > 0 {
		if err := d.indexShared(); err != nil {
			s.waits = time.Now().Add(sharedPause)
			return 0, false, err
		}
	}
	for len(s.rests) > 0 && time.Since(s.rests[0].since) >= sharedRest {
		s.free = append(s.free, s.rests[0].place)
		s.rests = s.rests[1:]
	}
	if len(s.free) == 0 && len(s.memory.Entries) < int(d.options.Limits.Flows) {
		if err := d.growShared(); err != nil {
			s.waits = time.Now().Add(sharedPause)
			return 0, false, err
		}
	}
	if len(s.free) == 0 {
		return 0, false, nil
	}
	place = s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return place, true, nil
}

// growShared makes a table that is twice as large. Changes between the copy and the switch, which
// waits until no program uses the earlier table, are merged.
func (d *Datapath) growShared() error {
	s := &d.shared
	have := s.memory
	room := min(max(sharedFirst, 2*len(have.Entries)), int(d.options.Limits.Flows))
	table, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: uint32(unsafe.Sizeof(abi.SnatShared{})), MaxEntries: uint32(room),
		Flags: unix.BPF_F_INNER_MAP | unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return fmt.Errorf("create table for %d shared flows: %w", room, err)
	}
	defer table.Close()
	memory, err := bpfload.Map[abi.SnatShared](table)
	if err != nil {
		return err
	}
	copied := make([]uint64, len(have.Entries)) // first words
	for i := range have.Entries {
		memory.Entries[i] = have.Entries[i]
		memory.Entries[i].Flow = flows.AtOneMoment(&have.Entries[i].Flow)
		copied[i] = *flows.NATWord(&memory.Entries[i].Flow)
	}
	err = d.kernel.sharedTable.put(table, d.kernel.ensureOwned() == nil)
	if !d.kernel.sharedTable.has(table) {
		return errors.Join(err, memory.Close())
	}
	for i := range have.Entries {
		if late := atomic.LoadUint64(flows.NATWord(&have.Entries[i].Flow)); late != copied[i] {
			atomic.CompareAndSwapUint64(flows.NATWord(&memory.Entries[i].Flow), copied[i], late)
		}
	}
	s.memory, s.unindexed = memory, true
	for i := len(have.Entries); i < room; i++ {
		s.free = append(s.free, uint32(i))
	}
	return errors.Join(err, have.Close(), d.indexShared())
}

// replace writes a flow over what was read of its place; false: a program has changed that since. No
// program uses the place meanwhile, and the first word comes last.
func replace(at *abi.SnatFlow, was, flow abi.SnatFlow, now uint32) bool {
	claimed := abi.SnatFlow{Seen: now, State: uint8(abi.SnatStateSNAT_CLAIMED)}
	if was.State == claimed.State || !atomic.CompareAndSwapUint64(flows.NATWord(at), *flows.NATWord(&was), *flows.NATWord(&claimed)) {
		return false
	}
	word := *flows.NATWord(&flow)
	*flows.NATWord(&flow) = *flows.NATWord(&claimed)
	*at = flow
	atomic.StoreUint64(flows.NATWord(at), word)
	return true
}

// freeShared takes a flow out of the table.
func (d *Datapath) freeShared(end abi.SnatEnd, place uint32) error {
	s := &d.shared
	e := &s.memory.Entries[place]
	err := errors.Join(ignoreMissing("forget a shared flow", s.ends.Delete(end)), s.forgetClient(d.clientHash(clientOfShared(e)), s.number(place)))
	atomic.StoreUint64(flows.NATWord(&e.Flow), 0)
	delete(s.places, end)
	if a := ownOf(e).Addr(); e.Announced != 0 {
		if s.sources[a]--; s.sources[a] <= 0 {
			delete(s.sources, a)
		}
	}
	s.rests = append(s.rests, restingPlace{place, time.Now()})
	return err
}

// occupy notes the place of a flow.
func (s *sharedNAT) occupy(e *abi.SnatShared, place uint32) {
	s.places[endOf(e)] = place
	if e.Announced != 0 {
		s.sources[ownOf(e).Addr()]++
	}
}

// announce notes whether a flow's own director announces the address.
func (s *sharedNAT) announce(e *abi.SnatShared, announced uint8) {
	if e.Announced == announced {
		return
	}
	e.Announced = announced
	if a := ownOf(e).Addr(); announced != 0 {
		s.sources[a]++
	} else if s.sources[a]--; s.sources[a] <= 0 {
		delete(s.sources, a)
	}
}

// SharedSources are the addresses that other directors announce, and of which this one goes on with
// flows, in order.
func (d *Datapath) SharedSources() []netip.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.SortedFunc(maps.Keys(d.shared.sources), netip.Addr.Compare)
}

// forgetClient takes a number out of clients, if it is what is there.
func (s *sharedNAT) forgetClient(hash uint64, number uint32) error {
	var has uint32
	if err := s.clients.Lookup(hash, &has); err != nil || has != number {
		return ignoreMissing("look for a shared flow", err)
	}
	return ignoreMissing("forget a shared flow", s.clients.Delete(hash))
}

// sharedPlaces are the places of the table that have flows.
func (d *Datapath) sharedPlaces() []uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.shared.places))
}

// eachShared calls see for the living flows in some places, with the lock held.
func (d *Datapath) eachShared(places []uint32, see func(e *abi.SnatFlow, at natAddress, now uint32)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, err := flows.Clock()
	if err != nil || d.closed() {
		return err
	}
	d.nameIndexes()
	for _, place := range places {
		if int(place) >= len(d.shared.memory.Entries) {
			continue
		}
		e := &d.shared.memory.Entries[place]
		if f := flows.AtOneMoment(&e.Flow); f.State > uint8(abi.SnatStateSNAT_CLAIMED) && flows.LiveNAT(d.entries.Entries, &f, now) {
			see(&f, natAddress{ownOf(e), e.Announced != 0, false}, now)
		}
	}
	return nil
}

// sweepShared frees the places of flows that have ended. A Set need not wait for all of them.
func (d *Datapath) sweepShared() {
	const atOnce = 1 << 12
	fresh := 0
	for some := range slices.Chunk(d.sharedPlaces(), atOnce) {
		if err := d.sweepSome(some, &fresh); err != nil {
			d.log.Error("free what has ended of full NAT's shared flows", "error", err)
			return
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() || !d.whole {
		return
	}
	d.shared.fresh = fresh
	if err := d.sweepOutside(); err != nil {
		d.log.Error("forget what has ended of full NAT's flows", "error", err)
	}
}

// sweepSome looks at some places, and counts the fresh flows.
func (d *Datapath) sweepSome(places []uint32, fresh *int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() || d.shared.clients == nil || !d.whole {
		return nil // before the first Set no backend is known, and all flows would seem to have ended
	}
	now, err := flows.Clock()
	for _, place := range places {
		e := &d.shared.memory.Entries[place]
		if at, has := d.shared.places[endOf(e)]; !has || at != place {
			continue // it is free by now, and rests
		}
		switch f := flows.AtOneMoment(&e.Flow); {
		case !flows.LiveNAT(d.entries.Entries, &f, now):
			err = errors.Join(err, d.freeShared(endOf(e), place))
		case isFresh(&f):
			*fresh++
		}
	}
	return err
}

// sweepOutside forgets flows of the director's own table that were outside of their buckets.
func (d *Datapath) sweepOutside() error {
	s := &d.shared
	if len(s.own) == 0 || s.clients == nil {
		return nil
	}
	now, err := flows.Clock()
	if err != nil {
		return err
	}
	table, err := d.kernel.mapNAT()
	if err != nil {
		return err
	}
	for hash, number := range maps.Clone(s.own) {
		if table != nil {
			e, there := table.Read(int(number) - flows.BucketPorts)
			protocol, ipv6 := table.Kind(number, &e)
			if there && d.clientHash(flows.ClientFlow(&e, protocol, ipv6)) == hash && flows.LiveNAT(d.entries.Entries, &e, now) {
				continue
			}
		}
		err = errors.Join(err, s.forgetClient(hash, number))
		delete(s.own, hash)
	}
	if table != nil {
		err = errors.Join(err, table.Close())
	}
	return err
}
