package datapath

import (
	"errors"
	"net/netip"
	"slices"
	"unsafe"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// mapNAT returns the table that is in use; nil: there is none.
func (k *kernel) mapNAT() (*flows.NATTable, error) {
	header, found, err := k.snatHeader()
	if err != nil || !found {
		return nil, err
	}
	table, err := k.snatTable.used()
	if err != nil || table == nil {
		return nil, err
	}
	defer table.Close()
	return flows.OpenNAT(table, header)
}

// eachNAT calls see for each living flow of full NAT's table, with the lock held, as long as
// between returns true. The lock is free while between is called, from time to time, so that a Set
// need not wait for all of the table.
func (d *Datapath) eachNAT(see func(t *flows.NATTable, i int, e *abi.SnatFlow, now uint32), between func() bool) (places int, err error) {
	d.mu.Lock()
	if d.closed() {
		d.mu.Unlock()
		return 0, nil
	}
	table, err := d.kernel.mapNAT()
	d.mu.Unlock()
	if err != nil || table == nil {
		return 0, err
	}
	const atOnce = 1 << 14 // entries, most of them free
	for first := 0; first < len(table.Flows) && err == nil; first += atOnce {
		if err = d.someNAT(table, first, min(first+atOnce, len(table.Flows)), see); err == nil && !between() {
			break
		}
	}
	return len(table.Flows), errors.Join(err, table.Close())
}

func (d *Datapath) someNAT(table *flows.NATTable, from, to int, see func(t *flows.NATTable, i int, e *abi.SnatFlow, now uint32)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, err := flows.Clock()
	if err != nil || d.closed() {
		return err
	}
	d.nameIndexes()
	for i := from; i < to; i++ {
		if e, there := table.Read(i); there && flows.LiveNAT(d.entries.Entries, &e, now) {
			see(table, i, &e, now)
		}
	}
	return nil
}

// NATFlows hands out the flows of full NAT, those of this director and those of which others have
// told, some at a time, for as long as take returns true.
func (d *Datapath) NATFlows(take func(some []model.NATFlow) bool) error {
	return d.handOutNAT(d.nameNAT, take)
}

// handOutNAT hands out the flows of full NAT that name has a name for.
func (d *Datapath) handOutNAT(name func(e *abi.SnatFlow, at natAddress, now uint32) (model.NATFlow, bool), take func(some []model.NATFlow) bool) error {
	more := true
	var list []model.NATFlow
	_, err := d.eachNAT(func(t *flows.NATTable, i int, e *abi.SnatFlow, now uint32) {
		if flow, useful := name(e, natAddress{t.Source(uint32(flows.BucketPorts + i)), d.table.SNAT.Announce, true}, now); useful {
			list = append(list, flow)
		}
	}, func() bool {
		more = takeAll(&list, take)
		return more
	})
	if err != nil || !more {
		return err
	}
	for some := range slices.Chunk(d.sharedPlaces(), flowsAtOnce) {
		err := d.eachShared(some, func(e *abi.SnatFlow, at natAddress, now uint32) {
			if flow, useful := name(e, at, now); useful {
				list = append(list, flow)
			}
		})
		if err != nil || !takeAll(&list, take) {
			return err
		}
	}
	return nil
}

// takeAll hands out a list and empties it.
func takeAll(list *[]model.NATFlow, take func([]model.NATFlow) bool) bool {
	for some := range slices.Chunk(*list, flowsAtOnce) {
		if !take(some) {
			return false
		}
	}
	*list = nil
	return true
}

// natAddress is the address and port that a flow of full NAT has, and whether the director that they
// belong to announces the address.
type natAddress struct {
	own       netip.AddrPort
	announced bool
	here      bool // it is this director
}

// nameNAT is nameFlow for a living flow of full NAT.
func (d *Datapath) nameNAT(e *abi.SnatFlow, at natAddress, now uint32) (model.NATFlow, bool) {
	s, backend := d.names.services[d.entries.Entries[e.Backend].Service], d.names.backends[e.Backend]
	means := flows.NATMeaningOf(e)
	if inside := d.overlay.snatInside(e.Backend, at.own.Addr().Is6()); at.here && inside.IsValid() {
		at.own = netip.AddrPortFrom(inside, at.own.Port())
	}
	if s == nil || !backend.IsValid() || means.State == 0 {
		return model.NATFlow{}, false
	}
	f := model.NATFlow{RememberedFlow: model.RememberedFlow{
		Service: s.key.id(), Backend: backend, Source: netip.AddrPortFrom(abi.AddressOf(e.Client, s.key.vip.Is6()), abi.BigEndian16(e.ClientPort)),
		Port: abi.BigEndian16(e.VipPort), Class: means.Class, State: means.State, Age: uint32(max(0, int32(now-e.Seen))),
	}, Own: at.own, Announced: at.announced, ByOwner: at.here}
	if s.key.protocol == model.TCP {
		f.Numbers, f.Taken = numbersOf(e)
		f.ClientClosed, f.BackendClosed = e.Fins&uint8(abi.SnatFinSNAT_FIN_CLIENT) != 0, e.Fins&uint8(abi.SnatFinSNAT_FIN_BACKEND) != 0
	}
	return f, true
}

// numbersOf are the numbers of a TCP flow (snat_numbers), and the port of the host that has taken it
// over.
func numbersOf(e *abi.SnatFlow) (numbers model.NATNumbers, taken uint16) {
	answered := e.Proof&uint8(abi.SnatProofSNAT_ANSWER) != 0
	if e.Asked.State == uint8(abi.AskedStateASKED_TAKEN) && !answered {
		taken = abi.BigEndian16(e.Asked.Port)
	}
	switch {
	case e.Proof&uint8(abi.SnatProofSNAT_HALVES) != 0:
		numbers = model.NATNumbers{Known: true, Client: e.Asked.Sequence << 16, Backend: e.Asked.Sequence &^ 0xffff}
	case answered:
		numbers = model.NATNumbers{Known: true, Client: e.Asked.Sequence + 1, Backend: *answerOf(&e.Asked)}
	}
	return numbers, taken
}

// answerOf is the second half of union ask_word.
func answerOf(asked *abi.SnatAsked) *uint32 { return (*uint32)(unsafe.Pointer(&asked.Port)) }

// natStatus says how full the table of full NAT is; nil: there is none.
func (d *Datapath) natStatus() (*model.NATStatus, error) {
	var status model.NATStatus
	places, err := d.eachNAT(func(_ *flows.NATTable, _ int, e *abi.SnatFlow, _ uint32) {
		status.Flows++
		if flows.NATMeaningOf(e).Class == model.FreshFlow {
			status.Fresh++
		}
	}, func() bool { return true })
	if err != nil || places == 0 {
		return nil, err
	}
	status.Places = places
	err = d.eachShared(d.sharedPlaces(), func(*abi.SnatFlow, natAddress, uint32) { status.Shared++ })
	return &status, err
}

// countNATBy counts the fresh flows of full NAT by service, or all flows if none is fresh.
func (d *Datapath) countNATBy() (map[uint32]uint32, error) {
	fresh, all := map[uint32]uint32{}, map[uint32]uint32{}
	_, err := d.eachNAT(func(_ *flows.NATTable, _ int, e *abi.SnatFlow, _ uint32) {
		service := d.entries.Entries[e.Backend].Service
		all[service]++
		if flows.NATMeaningOf(e).Class == model.FreshFlow {
			fresh[service]++
		}
	}, func() bool { return true })
	if len(fresh) == 0 {
		return all, err
	}
	return fresh, err
}
