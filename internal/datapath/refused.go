package datapath

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
)

const sourceFilterBits = 15 // SOURCE_FILTER_BITS

// refusal is which addresses must not be clients (bpf/director/refuse.h): VIPs, and backends where they
// serve. A hash map has the backends. A filter of address hashes says which sources are worth a
// look.
type refusal struct {
	kernel *ebpf.Map
	filter bpfload.Memory[uint64]
	counts []uint32 // how many addresses each bit stands for
	of     map[uint32]refusedBy
	old    map[abi.BackendSource]bool // of the process before, until all services are known
}

// refusedBy is what one service adds.
type refusedBy struct {
	bits []uint32
	keys map[abi.BackendSource]bool
}

// openRefused finds out what an earlier process left in these maps.
func openRefused(keys, filterMap *ebpf.Map) (*refusal, error) {
	filter, err := bpfload.Map[uint64](filterMap)
	if err != nil {
		return nil, err
	}
	r := &refusal{kernel: keys, filter: filter,
		counts: make([]uint32, 1<<sourceFilterBits), of: map[uint32]refusedBy{}, old: map[abi.BackendSource]bool{}}
	var key abi.BackendSource
	var there uint8
	all := r.kernel.Iterate()
	for all.Next(&key, &there) {
		r.old[key] = true
	}
	if err := all.Err(); err != nil {
		return nil, errors.Join(fmt.Errorf("read where backends serve: %w", err), r.filter.Close())
	}
	return r, nil
}

// sourceBit is an address's bit in the filter, as in_source_filter in bpf/director/refuse.h computes it.
func sourceBit(a netip.Addr) uint32 {
	bytes := abi.AddressBytes(a)
	words := (*[4]uint32)(unsafe.Pointer(&bytes))
	return (words[0] ^ words[1] ^ words[2] ^ words[3]) * 0x9e3779b1 >> (32 - sourceFilterBits)
}

// mayRefuse says whether packets from an address have to be looked up, as may_be_refused does.
func (r *refusal) mayRefuse(a netip.Addr) bool { return r.counts[sourceBit(a)] > 0 }

// refusedOf is what a service adds: its VIP, and where its backends serve.
func refusedOf(s *service) refusedBy {
	by := refusedBy{bits: []uint32{sourceBit(s.key.vip)}, keys: make(map[abi.BackendSource]bool, len(s.order))}
	for _, b := range s.order {
		by.bits = append(by.bits, sourceBit(b.desired.Address))
		by.keys[abi.BackendSource{Service: s.index, Address: abi.AddressBytes(b.desired.Address), Port: abi.BigEndian16(b.desired.Port)}] = true
	}
	return by
}

// set is called with the services that a table has changed, before packets find them. Sources that
// they no longer have are removed at once: packets from these sources pass.
func (r *refusal) set(changed []*service, h hands) error {
	for _, s := range changed {
		is, was := refusedOf(s), r.of[s.index]
		for key := range is.keys {
			if was.keys[key] || r.old[key] {
				continue
			}
			if err := exchange(r.kernel, "backend_sources", key, uint8(1), 0, false, h); err != nil {
				return fmt.Errorf("write where backends of service %d serve: %w", s.index, err)
			}
		}
		for _, bit := range is.bits {
			if r.counts[bit]++; r.counts[bit] == 1 {
				atomic.OrUint64(&r.filter.Entries[bit/64], 1<<(bit%64))
			}
		}
		r.of[s.index] = refusedBy{bits: is.bits, keys: maps.Clone(is.keys)}
		if err := r.forget(was, is.keys); err != nil {
			return err
		}
	}
	return nil
}

// leave takes out what a service that goes has added.
func (r *refusal) leave(index uint32) error {
	was := r.of[index]
	delete(r.of, index)
	return r.forget(was, nil)
}

func (r *refusal) forget(was refusedBy, stay map[abi.BackendSource]bool) error {
	for _, bit := range was.bits {
		if r.counts[bit]--; r.counts[bit] == 0 {
			atomic.AndUint64(&r.filter.Entries[bit/64], ^(uint64(1) << (bit % 64)))
		}
	}
	for key := range was.keys {
		if stay[key] {
			continue
		}
		if err := ignoreMissing("remove where a backend served", r.kernel.Delete(key)); err != nil {
			return err
		}
	}
	return nil
}

// all returns the places where backends serve.
func (r *refusal) all() map[abi.BackendSource]uint8 {
	all := map[abi.BackendSource]uint8{}
	for _, by := range r.of {
		for key := range by.keys {
			all[key] = 1
		}
	}
	return all
}

// clean takes out the entries that an earlier process left of services that are gone.
func (r *refusal) clean() error {
	if r.old == nil {
		return nil
	}
	for key := range r.old {
		if !r.of[key.Service].keys[key] {
			if err := ignoreMissing("remove where a backend served", r.kernel.Delete(key)); err != nil {
				return err
			}
		}
	}
	r.old = nil
	for i := range r.filter.Entries {
		word := uint64(0)
		for bit := range 64 {
			if r.counts[64*i+bit] > 0 {
				word |= 1 << bit
			}
		}
		atomic.StoreUint64(&r.filter.Entries[i], word)
	}
	return nil
}

// pinName is a map's name in a directory of pins, where names have no dots.
func pinName(name string) string { return strings.ReplaceAll(strings.TrimPrefix(name, "."), ".", "-") }
