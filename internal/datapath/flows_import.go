package datapath

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// Other directors may share flows of a service or a backend that this one does not know yet:
// these wait for the next Sets, but not for long.
const (
	importWaits = 10 * time.Second
	mostWaiting = 1 << 16 // at most
)

// flowImport puts other directors' flows into the memory, and counts what became of them.
type flowImport struct {
	bpfload.Memory[abi.Telling] // that the program reads

	older    []bool   // by record: whether it is of an older owner's flow
	outcomes []uint64 // by enum told_outcome
	waiting  waitingList[model.RememberedFlow]
	nat      waitingList[model.NATFlow]
}

// waiting is a flow that waits for its service or backend, which are not known yet.
type waiting[Flow any] struct {
	flow  Flow
	since time.Time
}

// waitingList has the oldest flow first.
type waitingList[Flow any] []waiting[Flow]

// waitFrom are flows that wait from now on.
func waitFrom[Flow any](now time.Time, list []Flow) (l waitingList[Flow]) {
	for _, f := range list {
		l = append(l, waiting[Flow]{f, now})
	}
	return l
}

// drop gives up flows that have waited too long, or are too many, and returns how many they were.
func (l *waitingList[Flow]) drop() (n int) {
	late := time.Now().Add(-importWaits)
	n = max(0, len(*l)-mostWaiting)
	for n < len(*l) && (*l)[n].since.Before(late) {
		n++
	}
	*l = slices.Delete(*l, 0, n)
	return n
}

func (t *flowImport) tallies(names []string) (list []model.Tallied) {
	for i, name := range names {
		list = append(list, model.Tallied{Name: name, Count: t.outcomes[i]})
	}
	return list
}

// Remember takes over what other directors remember of flows, as if the packets had come here. That
// includes flows of services and backends that a Set brings a moment later.
func (d *Datapath) Remember(list []model.RememberedFlow) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() {
		return nil
	}
	err := d.remember(waitFrom(time.Now(), list), func(w waiting[model.RememberedFlow]) {
		d.imports.outcomes[abi.ToldOutcomeTOLD_WAITS]++
		d.imports.waiting = append(d.imports.waiting, w)
	})
	d.dropWaiting()
	return err
}

// rememberWaiting tries flows again that a Set may have made room for.
func (d *Datapath) rememberWaiting() error {
	list, nat := d.imports.waiting, d.imports.nat
	d.imports.waiting, d.imports.nat = nil, nil
	err := d.remember(list, func(w waiting[model.RememberedFlow]) { d.imports.waiting = append(d.imports.waiting, w) })
	err = errors.Join(err, d.rememberNAT(nat, func(w waiting[model.NATFlow]) { d.imports.nat = append(d.imports.nat, w) }))
	d.dropWaiting()
	return err
}

// dropWaiting gives up flows whose service or backend has not come.
func (d *Datapath) dropWaiting() {
	d.imports.outcomes[abi.ToldOutcomeTOLD_UNKNOWN] += uint64(d.imports.waiting.drop() + d.imports.nat.drop())
}

// remember hands flows to the program. Flows of unknown services or backends go to wait.
func (d *Datapath) remember(list waitingList[model.RememberedFlow], wait func(waiting[model.RememberedFlow])) error {
	now, err := flows.Clock()
	if err != nil {
		return err
	}
	for some := range slices.Chunk(list, len(d.imports.Entries)) {
		count := 0
		for i := range some {
			record, older, outcome := d.recordOf(&some[i], now)
			switch {
			case outcome == abi.ToldOutcomeTOLD_WAITS:
				wait(some[i])
			case outcome != abi.ToldOutcomeTOLD_NEW:
				d.imports.outcomes[outcome]++
			default:
				d.imports.Entries[count], d.imports.older[count] = record, older
				count++
			}
		}
		if err := d.runImport(count); err != nil {
			return err
		}
	}
	return nil
}

// recordOf translates a flow into this director's indexes, and says whether it is an open TCP flow
// of an older owner. The outcome is TOLD_NEW if the program is to look at it.
func (d *Datapath) recordOf(told *waiting[model.RememberedFlow], now uint32) (t abi.Telling, older bool, outcome abi.ToldOutcome) {
	flow := &told.flow
	key := keyOfID(flow.Service)
	s := d.services[key]
	state := flows.StateOf(flow)
	if s == nil {
		return t, false, abi.ToldOutcomeTOLD_WAITS
	}
	b := s.backends[backendKey{address: flow.Backend.Addr(), port: flow.Backend.Port()}]
	if b == nil {
		return t, false, abi.ToldOutcomeTOLD_WAITS
	}
	if state == 0 || flow.Source.Addr().Is4() != key.vip.Is4() {
		return t, false, abi.ToldOutcomeTOLD_UNKNOWN
	}
	if s.ring.lines == 0 {
		return t, false, abi.ToldOutcomeTOLD_UNUSED
	}
	image := d.rings.bytes(s.ring)
	slots, header := ringSlots(image)
	if len(slots) == 0 || header.Flags&uint8(abi.RingFlagRING_MEMORY) == 0 {
		return t, false, abi.ToldOutcomeTOLD_UNUSED
	}
	age := flow.Age + uint32(time.Since(told.since)>>30)
	t.Entry = abi.FlowEntry{
		Seen: now - age, State: uint8(state), Since: uint8(now), Epoch: d.entries.Entries[b.index].Epoch, Backend: b.index, Service: s.index, Next: flow.Next,
		Source: abi.AddressBytes(flow.Source.Addr()), SourcePort: abi.BigEndian16(flow.Source.Port()), DestinationPort: abi.BigEndian16(flow.Port),
	}
	t.Ipv6 = truth(key.vip.Is6())
	number := slotOf(s, header, &t.Entry)
	goes := state == abi.FlowStateFLOW_TOLD || state == abi.FlowStateFLOW_ESTABLISHED || state == abi.FlowStateFLOW_PROVED
	older = goes && age < now && d.isOfOlder(s, slots[number], b.index)
	s.askFor(image, number, b.index)
	return t, older, abi.ToldOutcomeTOLD_NEW
}

// askFor makes a slot ask flow memory if it is about to have a flow of a backend other than its
// owner.
func (s *service) askFor(image []byte, number, backend uint32) {
	slots, _ := ringSlots(image)
	if number < uint32(len(s.clean)) {
		s.clean[number] = false
	}
	if slots[number].Next&(abi.SlotList|abi.SlotSettling) == 0 && slots[number].Owner != backend {
		atomic.OrUint32(&slots[number].Next, abi.SlotSettling)
		tellOwner(toldOwners(image), slots, int(number))
		s.settling++
	}
}

// takeEntries imports the living ones of entries that have this director's indexes, as they are. It
// returns how many were taken, and how many found no place.
func (d *Datapath) takeEntries(entries iter.Seq[*abi.FlowEntry]) (taken, refused int, err error) {
	now, err := flows.Clock()
	if err != nil {
		return 0, 0, err
	}
	d.nameIndexes()
	count := 0
	take := func() error {
		if err := d.kernel.takeTellings(count); err != nil {
			return err
		}
		for i := range d.imports.Entries[:count] {
			switch abi.ToldOutcome(d.imports.Entries[i].Outcome) {
			case abi.ToldOutcomeTOLD_REFUSED:
				refused++
			case abi.ToldOutcomeTOLD_NEW, abi.ToldOutcomeTOLD_AGAIN:
				taken++
			}
		}
		count = 0
		return nil
	}
	for e := range entries {
		s := d.names.services[e.Service]
		if s == nil || !flows.Live(d.entries.Entries, e, now) {
			continue
		}
		d.imports.Entries[count] = abi.Telling{Entry: *e, Ipv6: truth(s.key.vip.Is6())}
		if count++; count == len(d.imports.Entries) {
			if err := take(); err != nil {
				return taken, refused, err
			}
		}
	}
	err = take()
	return taken, refused, err
}

// takeTellings runs the program over the first records.
func (k *kernel) takeTellings(count int) error {
	_, err := k.importFlows.Run(&ebpf.RunOptions{Context: abi.Tellings{Count: uint32(count)}})
	return err
}

// runImport runs the program over the first records.
func (d *Datapath) runImport(count int) error {
	if count == 0 {
		return nil
	}
	if err := d.kernel.takeTellings(count); err != nil {
		return fmt.Errorf("import what other directors share of flows: %w", err)
	}
	for i := range d.imports.Entries[:count] {
		outcome := d.imports.Entries[i].Outcome
		if int(outcome) >= len(d.imports.outcomes) {
			return fmt.Errorf("import what other directors share of flows: the program says %d", outcome)
		}
		d.imports.outcomes[outcome]++
		if entry := &d.imports.Entries[i].Entry; d.imports.older[i] && abi.ToldOutcome(outcome) == abi.ToldOutcomeTOLD_NEW {
			d.guesses.note(entry.Service, entry.Seen)
		}
	}
	return nil
}
