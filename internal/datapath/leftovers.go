package datapath

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
)

// leftovers is what an earlier process left in the kernel and what goes on
// forwarding: the first Set keeps the indexes of what it finds again, so that
// counters and remembered flows go on, and frees the rest.
type leftovers struct {
	lookups
	blocks   map[uint32]int                   // how many prefixes each service has
	backends map[uint32]map[backendKey]uint32 // by service
}

func readLeftovers(k *kernel, entries backendEntries) (leftovers, error) {
	l := leftovers{newLookups(0), map[uint32]int{}, map[uint32]map[backendKey]uint32{}}
	err := readEndpoints(k.Services4, k.Services6, l.services)
	if err == nil {
		err = readEndpoints(k.Replies4, k.Replies6, l.replies)
	}
	if err == nil {
		err = readPrefixes(k, l.ranges)
	}
	if err != nil {
		return l, fmt.Errorf("read what is pinned: %w", err)
	}
	for p, index := range l.ranges {
		if p.reply == 0 {
			l.blocks[index]++
		}
	}
	for index := 1; index < len(entries.entries); index++ {
		e := &entries.entries[index]
		if e.State == uint8(directorBackendStateBACKEND_FREE) {
			continue
		}
		if l.backends[e.Service] == nil {
			l.backends[e.Service] = map[backendKey]uint32{}
		}
		l.backends[e.Service][storedKey(e)] = uint32(index)
	}
	return l, nil
}

// storedKey is the key of the backend that an entry was written for.
func storedKey(e *directorBackend) backendKey {
	return backendKey{
		address: addressOf(e.Address, e.Flags&uint8(directorBackendFlagBACKEND_IPV6) != 0),
		port:    bigEndian16(e.Port),
		mode:    model.Mode(e.Mode),
		snat:    e.Flags&uint8(directorBackendFlagBACKEND_SNAT) != 0,
	}
}

// find returns the index that a service had.
func (l *leftovers) find(key serviceKey) (uint32, bool) {
	if key.port.Single() {
		index, found := l.services[endpoint{key.segment, key.vip, uint8(key.protocol), key.port.First}]
		return index, found
	}
	blocks := key.prefixes()
	index := l.ranges[blocks[0]]
	for _, p := range blocks {
		if old, found := l.ranges[p]; !found || old != index {
			return 0, false
		}
	}
	// A part of what the service had is another service: its parts must not share.
	return index, l.blocks[index] == len(blocks)
}

func (l *leftovers) empty() bool {
	return len(l.services) == 0 && len(l.ranges) == 0 && len(l.backends) == 0
}

func (l *leftovers) serviceIndexes() []uint32 {
	set := map[uint32]bool{}
	for _, index := range l.services {
		if index != vipOnly {
			set[index] = true
		}
	}
	for p, index := range l.ranges {
		if p.reply == 0 {
			set[index] = true
		}
	}
	return slices.Collect(maps.Keys(set))
}

func (l *leftovers) backendIndexes() []uint32 {
	var list []uint32
	for _, backends := range l.backends {
		list = slices.AppendSeq(list, maps.Values(backends))
	}
	return list
}

func readEndpoints(map4, map6 *ebpf.Map, into map[endpoint]uint32) error {
	var key4 directorEndpoint4
	var key6 directorEndpoint6
	var index uint32
	all := map4.Iterate()
	for all.Next(&key4, &index) {
		into[endpoint{key4.Segment, address4(key4.Address), key4.Protocol, bigEndian16(key4.Port)}] = index
	}
	if err := all.Err(); err != nil {
		return err
	}
	all = map6.Iterate()
	for all.Next(&key6, &index) {
		into[endpoint{key6.Segment, addressOf(key6.Address, true), key6.Protocol, bigEndian16(key6.Port)}] = index
	}
	return all.Err()
}

func readPrefixes(k *kernel, into map[prefix]uint32) error {
	var key4 directorRange4
	var key6 directorRange6
	var index uint32
	all := k.Ranges4.Iterate()
	for all.Next(&key4, &index) {
		e := endpoint{key4.Segment, address4(key4.Address), key4.Protocol, bigEndian16(key4.Port)}
		into[prefix{e, key4.PrefixLen - fixedBits4, key4.Reply}] = index
	}
	if err := all.Err(); err != nil {
		return err
	}
	all = k.Ranges6.Iterate()
	for all.Next(&key6, &index) {
		e := endpoint{key6.Segment, addressOf(key6.Address, true), key6.Protocol, bigEndian16(key6.Port)}
		into[prefix{e, key6.PrefixLen - fixedBits6, key6.Reply}] = index
	}
	return all.Err()
}
