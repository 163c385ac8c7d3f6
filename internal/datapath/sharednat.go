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
	sharedFresh  = 4 // this part of the largest table may have fresh flows
)

// number is the number of the flow in a place of the table.
func (s *sharedNAT) number(place uint32) uint32 { return sharedNumber | place }

// openShared takes up the table that an earlier process has left. Flows that are outside of their
// buckets in the director's own table are found, too.
func (d *Datapath) openShared() error {
	d.shared = sharedNAT{places: map[abi.SnatEnd]uint32{}, sources: map[netip.Addr]int{}, own: map[uint64]uint32{}}
	table, err := d.kernel.sharedTable.used()
	if err != nil || table == nil {
		return err
	}
	defer table.Close()
	if d.shared.memory, err = bpfload.Map[abi.SnatShared](table); err != nil {
		return err
	}
	for i := range d.shared.memory.Entries {
		e := &d.shared.memory.Entries[i]
		if flows.AtOneMoment(&e.Flow).State <= uint8(abi.SnatStateSNAT_CLAIMED) {
			d.shared.free = append(d.shared.free, uint32(i))
			continue
		}
		e.Flow.Hash = uint32(d.clientHash(clientOfShared(e)))
		d.shared.occupy(endOf(e), uint32(i))
	}
	if err := d.findOutside(); err != nil {
		return err
	}
	return d.indexShared()
}

// findOutside finds the flows that are outside of their buckets in the director's own table.
func (d *Datapath) findOutside() error {
	table, err := d.kernel.mapNAT()
	if err != nil || table == nil {
		return err
	}
	for i := range table.Flows {
		e, there := table.Read(i)
		number := uint32(flows.BucketPorts + i)
		protocol, ipv6 := table.Kind(number)
		if f := flows.ClientFlow(&e, protocol, ipv6); there && !inBuckets(table, f, number) {
			d.shared.own[d.clientHash(f)] = number
		}
	}
	return table.Close()
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

// indexShared makes both indexes anew, as large as the table, and switches them in.
func (d *Datapath) indexShared() error {
	s := &d.shared
	room := uint32(len(s.memory.Entries))
	clients, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: 2 * room, Flags: unix.BPF_F_NO_PREALLOC})
	if err != nil {
		return fmt.Errorf("create an index of shared flows: %w", err)
	}
	ends, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: uint32(unsafe.Sizeof(abi.SnatEnd{})), ValueSize: 4, MaxEntries: room, Flags: unix.BPF_F_NO_PREALLOC})
	if err != nil {
		return errors.Join(fmt.Errorf("create an index of shared flows: %w", err), clients.Close())
	}
	s.closeIndexes()
	s.clients, s.ends = clients, ends
	var errs []error
	for hash, number := range s.own {
		errs = append(errs, clients.Put(hash, number))
	}
	for end, place := range s.places {
		errs = append(errs, ends.Put(end, s.number(place)), d.indexClient(place))
	}
	errs = append(errs, d.kernel.SharedClients.Put(uint32(0), clients), d.kernel.SharedEnds.Put(uint32(0), ends))
	return wrapped("index shared flows", errors.Join(errs...))
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

// indexClient lets the program find a flow by its client, unless a younger flow has the same client.
func (d *Datapath) indexClient(place uint32) error {
	number, e := d.shared.number(place), &d.shared.memory.Entries[place]
	hash := d.clientHash(clientOfShared(e))
	var other uint32
	err := d.shared.clients.Lookup(hash, &other)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	if err == nil && other != number && other&sharedNumber != 0 {
		f := flows.AtOneMoment(&d.shared.memory.Entries[other&^sharedNumber].Flow)
		if isFresh(&e.Flow) && !isFresh(&f) || isFresh(&e.Flow) == isFresh(&f) && int32(f.Seen-e.Flow.Seen) > 0 {
			return nil
		}
	}
	return d.shared.clients.Put(hash, number)
}

// room returns a place in the table, which grows as far as director.limits.flows allows.
func (d *Datapath) sharedRoom() (place uint32, found bool, err error) {
	s := &d.shared
	for len(s.rests) > 0 && time.Since(s.rests[0].since) >= sharedRest {
		s.free = append(s.free, s.rests[0].place)
		s.rests = s.rests[1:]
	}
	if len(s.free) == 0 && len(s.memory.Entries) < int(d.options.Limits.Flows) {
		if err := d.growShared(); err != nil {
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

// growShared makes a table that is twice as large. A packet that changes a flow between the copy and
// the switch is forgotten: the next one changes it again.
func (d *Datapath) growShared() error {
	s := &d.shared
	have := len(s.memory.Entries)
	room := min(max(sharedFirst, 2*have), int(d.options.Limits.Flows))
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
	for i := range s.memory.Entries {
		memory.Entries[i] = s.memory.Entries[i]
		memory.Entries[i].Flow = flows.AtOneMoment(&s.memory.Entries[i].Flow)
	}
	if err := d.kernel.sharedTable.put(table, d.kernel.ensureOwned() == nil); err != nil {
		return errors.Join(err, memory.Close())
	}
	err = s.memory.Close()
	s.memory = memory
	for i := have; i < room; i++ {
		s.free = append(s.free, uint32(i))
	}
	return errors.Join(err, d.indexShared())
}

// writeShared puts a flow into a place that no program finds yet. Its first word comes last.
func writeShared(e *abi.SnatShared, flow abi.SnatShared) {
	word := *flows.NATWord(&flow.Flow)
	flow.Flow.State = uint8(abi.SnatStateSNAT_CLAIMED)
	atomic.StoreUint64(flows.NATWord(&e.Flow), *flows.NATWord(&flow.Flow))
	*e = flow
	atomic.StoreUint64(flows.NATWord(&e.Flow), word)
}

// freeShared takes a flow out of the table.
func (d *Datapath) freeShared(end abi.SnatEnd, place uint32) error {
	s := &d.shared
	e := &s.memory.Entries[place]
	err := errors.Join(ignoreMissing("forget a shared flow", s.ends.Delete(end)), s.forgetClient(d.clientHash(clientOfShared(e)), s.number(place)))
	atomic.StoreUint64(flows.NATWord(&e.Flow), 0)
	delete(s.places, end)
	if a := sourceOf(end); s.sources[a] > 1 {
		s.sources[a]--
	} else {
		delete(s.sources, a)
	}
	s.rests = append(s.rests, restingPlace{place, time.Now()})
	return err
}

// occupy notes the place of a flow.
func (s *sharedNAT) occupy(end abi.SnatEnd, place uint32) {
	s.places[end] = place
	s.sources[sourceOf(end)]++
}

func sourceOf(end abi.SnatEnd) netip.Addr { return abi.AddressOf(end.Address, end.Ipv6 != 0) }

// SharedSources are the addresses of other directors' flows that this director goes on with, in
// order.
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
func (d *Datapath) eachShared(places []uint32, see func(e *abi.SnatFlow, own netip.AddrPort, now uint32)) error {
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
			see(&f, ownOf(e), now)
		}
	}
	return nil
}

// sweepShared frees the places of flows that have ended.
func (d *Datapath) sweepShared() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() || d.shared.clients == nil {
		return
	}
	if err := d.sweepSharedFlows(); err != nil {
		d.log.Error("free what has ended of full NAT's shared flows", "error", err)
	}
}

func (d *Datapath) sweepSharedFlows() error {
	s := &d.shared
	now, err := flows.Clock()
	if err != nil {
		return err
	}
	s.fresh = 0
	for end, place := range maps.Clone(s.places) {
		e := flows.AtOneMoment(&s.memory.Entries[place].Flow)
		switch {
		case !flows.LiveNAT(d.entries.Entries, &e, now):
			err = errors.Join(err, d.freeShared(end, place))
		case isFresh(&e):
			s.fresh++
		}
	}
	if len(s.own) == 0 {
		return err
	}
	table, openErr := d.kernel.mapNAT()
	if openErr != nil {
		return errors.Join(err, openErr)
	}
	for hash, number := range maps.Clone(s.own) {
		if table != nil {
			e, there := table.Read(int(number) - flows.BucketPorts)
			protocol, ipv6 := table.Kind(number)
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
