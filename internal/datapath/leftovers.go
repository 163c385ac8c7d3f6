package datapath

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// leftovers is what an earlier process left in the kernel, where it goes on forwarding. The first
// Set keeps the indexes of what it finds again, so that counters and remembered flows go on, and
// frees the rest.
type leftovers struct {
	lookups                                   // of maps that were adopted
	services map[serviceKey]uint32            // by the index records
	backends map[uint32]map[backendKey]uint32 // by service
}

func readLeftovers(k *kernel, limits model.Limits) (leftovers, error) {
	l := leftovers{lookups: newLookups(0)}
	l.services, l.backends = k.records.within(limits)
	if !k.adopted {
		return l, nil
	}
	err := readEndpoints(k.Services4, k.Services6, l.lookups.services)
	if err == nil {
		err = readEndpoints(k.Replies4, k.Replies6, l.replies)
	}
	if err == nil {
		err = readPrefixes(k, l.ranges)
	}
	if err == nil {
		err = readAsked(k, l.asked)
	}
	if err != nil {
		return l, fmt.Errorf("read what is pinned: %w", err)
	}
	return l, nil
}

// Inherited returns the backends to which an earlier process's programs send packets and which its
// probes found healthy, or which were not probed; and those to which it redirected connections. It
// is for before the first Set.
func (d *Datapath) Inherited() map[model.Target]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	well := map[model.Target]bool{}
	if len(d.kernel.attached) == 0 {
		return well // no program forwards, so there is nothing to go on with
	}
	for service, index := range d.old.services {
		id := model.ServiceID{Segment: model.SegmentOf(service.segment), VIP: service.vip, Protocol: service.protocol, Port: service.port}
		for backend, index := range d.old.backends[index] {
			target := model.Target{Service: id, Backend: netip.AddrPortFrom(backend.address, backend.port)}
			if d.kernel.records.backends.Entries[index].health == wasWell {
				well[target] = true
			}
			if d.entries.redirects(index) {
				target.Redirect = true
				well[target] = true
			}
		}
	}
	return well
}

func (l *leftovers) empty() bool {
	return len(l.lookups.services) == 0 && len(l.ranges) == 0 && len(l.services) == 0 && len(l.backends) == 0
}

func (l *leftovers) serviceIndexes() []uint32 { return slices.Collect(maps.Values(l.services)) }

func (l *leftovers) backendIndexes() []uint32 {
	var list []uint32
	for _, backends := range l.backends {
		list = slices.AppendSeq(list, maps.Values(backends))
	}
	return list
}

func readEndpoints(map4, map6 *ebpf.Map, into map[endpoint]uint32) error {
	var key4 abi.Endpoint4
	var key6 abi.Endpoint6
	var index uint32
	all := map4.Iterate()
	for all.Next(&key4, &index) {
		into[endpoint{key4.Segment, abi.Address4(key4.Address), key4.Protocol, abi.BigEndian16(key4.Port)}] = index
	}
	if err := all.Err(); err != nil {
		return err
	}
	all = map6.Iterate()
	for all.Next(&key6, &index) {
		into[endpoint{key6.Segment, abi.AddressOf(key6.Address, true), key6.Protocol, abi.BigEndian16(key6.Port)}] = index
	}
	return all.Err()
}

func readAsked(k *kernel, into map[abi.AskBackend]uint32) error {
	var key abi.AskBackend
	var index uint32
	all := k.AskBackends.Iterate()
	for all.Next(&key, &index) {
		into[key] = index
	}
	return all.Err()
}

func readPrefixes(k *kernel, into map[prefix]uint32) error {
	var key4 abi.Range4
	var key6 abi.Range6
	var index uint32
	all := k.Ranges4.Iterate()
	for all.Next(&key4, &index) {
		e := endpoint{key4.Segment, abi.Address4(key4.Address), key4.Protocol, abi.BigEndian16(key4.Port)}
		into[prefix{e, key4.PrefixLen - fixedBits4, key4.Reply}] = index
	}
	if err := all.Err(); err != nil {
		return err
	}
	all = k.Ranges6.Iterate()
	for all.Next(&key6, &index) {
		e := endpoint{key6.Segment, abi.AddressOf(key6.Address, true), key6.Protocol, abi.BigEndian16(key6.Port)}
		into[prefix{e, key6.PrefixLen - fixedBits6, key6.Reply}] = index
	}
	return all.Err()
}
