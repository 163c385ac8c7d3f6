package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// natMemory is full NAT's table. Here it is only read: an entry may change while it is read.
type natMemory struct {
	memory []byte
	header directorSnatHeader
	flows  []directorSnatFlow // by their numbers, which begin after the header
}

// mapNAT returns the table that is in use; nil: there is none.
func (k *kernel) mapNAT() (*natMemory, error) {
	header, found, err := k.snatHeader()
	if err != nil || !found {
		return nil, err
	}
	table, err := k.usedSNAT()
	if err != nil || table == nil {
		return nil, err
	}
	defer table.Close()
	memory, err := unix.Mmap(table.FD(), 0, int(table.MaxEntries())*snatBucketBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map table of full NAT: %w", err)
	}
	first := (*directorSnatFlow)(unsafe.Pointer(&memory[snatBucketBytes]))
	return &natMemory{memory, header, unsafe.Slice(first, (int(table.MaxEntries())-1)*snatBucketPorts)}, nil
}

func (t *natMemory) close() error {
	if err := unix.Munmap(t.memory); err != nil {
		return fmt.Errorf("unmap table of full NAT: %w", err)
	}
	return nil
}

// read returns an entry as it was at one moment; false: it is free, or is being written.
func (t *natMemory) read(i int) (directorSnatFlow, bool) {
	word := (*uint64)(unsafe.Pointer(&t.flows[i]))
	for {
		before := atomic.LoadUint64(word)
		entry := t.flows[i]
		if atomic.LoadUint64(word) == before {
			*(*uint64)(unsafe.Pointer(&entry)) = before
			return entry, entry.State > uint8(directorSnatStateSNAT_CLAIMED)
		}
	}
}

// source is the address and port of this director that an entry stands for.
func (t *natMemory) source(i int) netip.AddrPort {
	ports := int(t.header.Ports)
	address := i / ports / 2
	is6 := address >= int(t.header.Addresses4)
	return netip.AddrPortFrom(addressOf(t.header.Sources[address], is6), uint16(int(t.header.PortsFirst)+i%ports))
}

// natTimeout is how long a flow of full NAT lives in a state, in the clock's units: snat_timeout in
// bpf/director/nat/snat_state.h.
func natTimeout(state directorSnatState) uint32 {
	seconds := 60
	switch state {
	case directorSnatStateSNAT_ESTABLISHED:
		seconds = 7440
	case directorSnatStateSNAT_TWO_WAY:
		seconds = 300
	case directorSnatStateSNAT_CLOSING:
		seconds = 240
	case directorSnatStateSNAT_ONE_WAY, directorSnatStateSNAT_TRIED:
		seconds = 30
	}
	return uint32(uint64(seconds)*1e9>>30) + 1
}

// natMeaning is what an entry's state means to people.
func natMeaning(e *directorSnatFlow) flowMeaning {
	switch directorSnatState(e.State) {
	case directorSnatStateSNAT_SYN, directorSnatStateSNAT_ONE_WAY:
		return flowMeaning{model.FreshFlow, model.FlowOpening}
	case directorSnatStateSNAT_ANSWERED, directorSnatStateSNAT_TRIED:
		return flowMeaning{model.FreshFlow, model.FlowOpen}
	case directorSnatStateSNAT_ESTABLISHED, directorSnatStateSNAT_TWO_WAY:
		return flowMeaning{model.ProvedFlow, model.FlowOpen}
	case directorSnatStateSNAT_CLOSING, directorSnatStateSNAT_CLOSED:
		return flowMeaning{model.ProvedFlow, model.FlowClosing}
	case directorSnatStateSNAT_RESET:
		if e.Proof&uint8(directorSnatProofSNAT_HALVES) != 0 {
			return flowMeaning{model.ProvedFlow, model.FlowReset}
		}
		return flowMeaning{model.FreshFlow, model.FlowReset}
	}
	return flowMeaning{}
}

// liveNAT is live for an entry of full NAT's table.
func (e *backendEntries) liveNAT(flow *directorSnatFlow, now uint32) bool {
	if int(flow.Backend) >= len(e.entries) {
		return false
	}
	b := &e.entries[flow.Backend]
	return uint32(max(0, int32(now-flow.Seen))) <= natTimeout(directorSnatState(flow.State)) &&
		b.Epoch == flow.Epoch && b.State != uint8(directorBackendStateBACKEND_FREE)
}

// eachNAT calls see for each living flow of full NAT's table, with the lock held, as long as
// between returns true. The lock is free while between is called, from time to time, so that a Set
// need not wait for all of the table.
func (d *Datapath) eachNAT(see func(t *natMemory, i int, e *directorSnatFlow, now uint32), between func() bool) (places int, err error) {
	d.mu.Lock()
	if d.entries.memory == nil { // the datapath is closed
		d.mu.Unlock()
		return 0, nil
	}
	table, err := d.kernel.mapNAT()
	d.mu.Unlock()
	if err != nil || table == nil {
		return 0, err
	}
	const atOnce = 1 << 14 // entries, most of them free
	for first := 0; first < len(table.flows) && err == nil; first += atOnce {
		if err = d.someNAT(table, first, min(first+atOnce, len(table.flows)), see); err == nil && !between() {
			break
		}
	}
	return len(table.flows), errors.Join(err, table.close())
}

func (d *Datapath) someNAT(table *natMemory, from, to int, see func(t *natMemory, i int, e *directorSnatFlow, now uint32)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, err := flowClock()
	if err != nil || d.entries.memory == nil {
		return err
	}
	d.nameIndexes()
	for i := from; i < to; i++ {
		if e, there := table.read(i); there && d.entries.liveNAT(&e, now) {
			see(table, i, &e, now)
		}
	}
	return nil
}

// NATFlows hands out the flows of full NAT, some at a time, for as long as take returns true.
func (d *Datapath) NATFlows(take func(some []model.NATFlow) bool) error {
	var flows []model.NATFlow
	see := func(t *natMemory, i int, e *directorSnatFlow, now uint32) {
		s, backend := d.names.services[d.entries.entries[e.Backend].Service], d.names.backends[e.Backend]
		means := natMeaning(e)
		if s == nil || !backend.IsValid() || means.state == 0 {
			return
		}
		flows = append(flows, model.NATFlow{RememberedFlow: model.RememberedFlow{
			Service: s.key.id(), Backend: backend, Source: netip.AddrPortFrom(addressOf(e.Client, s.key.vip.Is6()), bigEndian16(e.ClientPort)),
			Port: bigEndian16(e.VipPort), Class: means.class, State: means.state, Age: uint32(max(0, int32(now-e.Seen))),
		}, Own: t.source(i)})
	}
	_, err := d.eachNAT(see, func() bool {
		some := flows
		flows = nil
		return len(some) == 0 || take(some)
	})
	return err
}

// natStatus says how full the table of full NAT is; nil: there is none.
func (d *Datapath) natStatus() (*model.NATStatus, error) {
	var status model.NATStatus
	places, err := d.eachNAT(func(_ *natMemory, _ int, e *directorSnatFlow, _ uint32) {
		status.Flows++
		if natMeaning(e).class == model.FreshFlow {
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
	_, err := d.eachNAT(func(_ *natMemory, _ int, e *directorSnatFlow, _ uint32) {
		service := d.entries.entries[e.Backend].Service
		all[service]++
		if natMeaning(e).class == model.FreshFlow {
			fresh[service]++
		}
	}, func() bool { return true })
	if len(fresh) == 0 {
		return all, err
	}
	return fresh, err
}
