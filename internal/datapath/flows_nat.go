package datapath

import (
	"errors"
	"net/netip"

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
	table, err := k.usedSNAT()
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

// NATFlows hands out the flows of full NAT, some at a time, for as long as take returns true.
func (d *Datapath) NATFlows(take func(some []model.NATFlow) bool) error {
	var list []model.NATFlow
	see := func(t *flows.NATTable, i int, e *abi.SnatFlow, now uint32) {
		s, backend := d.names.services[d.entries.Entries[e.Backend].Service], d.names.backends[e.Backend]
		means := flows.NATMeaningOf(e)
		if s == nil || !backend.IsValid() || means.State == 0 {
			return
		}
		list = append(list, model.NATFlow{RememberedFlow: model.RememberedFlow{
			Service: s.key.id(), Backend: backend, Source: netip.AddrPortFrom(abi.AddressOf(e.Client, s.key.vip.Is6()), abi.BigEndian16(e.ClientPort)),
			Port: abi.BigEndian16(e.VipPort), Class: means.Class, State: means.State, Age: uint32(max(0, int32(now-e.Seen))),
		}, Own: t.Source(uint32(flows.BucketPorts + i))})
	}
	_, err := d.eachNAT(see, func() bool {
		some := list
		list = nil
		return len(some) == 0 || take(some)
	})
	return err
}

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
	return &status, nil
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
