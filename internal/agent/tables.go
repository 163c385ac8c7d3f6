package agent

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
)

// tables are the contents that the maps must have.
type tables struct {
	ends      map[bpfAddress]uint32
	sources   map[bpfHostSource]uint32
	endpoints map[bpfHostEndpoint]uint32
	ranges    map[bpfHostRange]uint32
	peers     map[bpfHostPeer]uint32
	services  map[uint32]bpfHostService
	// Each number is one more than the kernel's: 0 ends the list.
	namespaces map[uint32]uint32
	podNames   map[bpfPodName]bpfPod
	podEnds    map[bpfPodEnd]bpfPod
	indexes    map[identity]uint32
	fresh      []uint32 // indexes that nobody had before: their counters are old
}

// noService is the index that the programs take for "none".
const noService = 0

// newTables gives every service an index and writes the plan down as keys and
// values. A service that is in the kernel already keeps its index and so its
// counters; an index that is in use by another service is not taken, because
// packets may still be looking at it.
func newTables(p plan, endpoints map[bpfHostEndpoint]uint32, ranges map[bpfHostRange]uint32, limit uint32) (tables, error) {
	t := tables{
		ends:       map[bpfAddress]uint32{},
		sources:    map[bpfHostSource]uint32{},
		endpoints:  map[bpfHostEndpoint]uint32{},
		ranges:     map[bpfHostRange]uint32{},
		peers:      map[bpfHostPeer]uint32{},
		services:   map[uint32]bpfHostService{},
		namespaces: map[uint32]uint32{},
		podNames:   map[bpfPodName]bpfPod{},
		podEnds:    map[bpfPodEnd]bpfPod{},
		indexes:    map[identity]uint32{},
	}
	for _, end := range p.ends {
		t.ends[address(end)] = uint32(p.holders[end])
	}
	for prefix, flags := range p.sources {
		t.sources[sourceKey(prefix)] = uint32(flags)
	}
	for i := range uint32(model.MaxNamespaces) {
		t.namespaces[i] = 0
	}
	for i, id := range p.namespaces {
		t.namespaces[uint32(i)] = id + 1
	}
	used := map[uint32]bool{noService: true}
	for _, index := range endpoints {
		used[index] = true
	}
	for _, index := range ranges {
		used[index] = true
	}
	var flags bpfHostServiceFlag
	if p.keepsAll {
		flags |= bpfHostServiceFlagHOST_SERVICE_KEEPS_ALL
	}
	next := uint32(noService)
	for _, s := range p.services {
		index := current(s, endpoints, ranges)
		if index == noService || t.has(index) {
			for used[next] {
				next++
			}
			if next >= limit {
				return tables{}, fmt.Errorf("service %s: a host can have %d services and VIPs", s.describe(), limit-1)
			}
			index = next
			used[index] = true
			t.fresh = append(t.fresh, index)
		}
		t.add(s, index, flags)
	}
	return t, nil
}

func (t *tables) has(index uint32) bool {
	_, ok := t.services[index]
	return ok
}

// current returns the index that the service has in the kernel.
func current(s service, endpoints map[bpfHostEndpoint]uint32, ranges map[bpfHostRange]uint32) uint32 {
	if !s.isRange() {
		return endpoints[s.endpoint()]
	}
	return ranges[s.ranges()[0]]
}

func (t *tables) add(s service, index uint32, flags bpfHostServiceFlag) {
	if s.podsOnly {
		flags |= bpfHostServiceFlagHOST_SERVICE_PODS
	}
	t.addPods(s, index)
	t.indexes[s.identity()] = index
	t.services[index] = bpfHostService{Mss: uint32(s.mss), Flags: uint32(flags)}
	for _, peer := range s.peers {
		t.peers[bpfHostPeer{Service: index, Address: address(peer)}] = currentPeer
	}
	if !s.isRange() {
		t.endpoints[s.endpoint()] = index
		return
	}
	for _, key := range s.ranges() {
		t.ranges[key] = index
	}
}

// put writes what must be there: a packet finds a service only when everything
// about it is in place.
func (t *tables) put(m *bpfMaps) error {
	zero := make([]bpfCounter, ebpf.MustPossibleCPU())
	for _, index := range t.fresh {
		if err := errors.Join(m.ServicePackets.Put(index, zero), m.ServiceRefusals.Put(index, zero)); err != nil {
			return fmt.Errorf("clear counters %d: %w", index, err)
		}
	}
	return errors.Join(
		putAll(m.PodsHere, t.podsHere(1)),
		putAll(m.PodNames, t.podNames),
		putAll(m.PodEnds, t.podEnds),
		putAll(m.Namespaces, t.namespaces),
		putAll(m.Services, t.services),
		putAll(m.Peers, t.peers),
		putAll(m.Sources, t.sources),
		putAll(m.Endpoints, t.endpoints),
		putAll(m.Ranges, t.ranges),
		putAll(m.TunnelEnds, t.ends))
}

// prune removes what must not be there, in the opposite order. Backends that are none any more
// are remembered for a while.
func (t *tables) prune(m *bpfMaps, former formerPeers) error {
	return errors.Join(
		removeOthers(m.TunnelEnds, t.ends),
		removeOthers(m.Ranges, t.ranges),
		removeOthers(m.Endpoints, t.endpoints),
		removeOthers(m.Sources, t.sources),
		former.retire(m.Peers, t.peers, t.services, now()),
		removeOthers(m.PodEnds, t.podEnds),
		removeOthers(m.PodNames, t.podNames),
		putAll(m.PodsHere, t.podsHere(0)))
}

func putAll[K comparable, V any](m *ebpf.Map, want map[K]V) error {
	for key, value := range want {
		if err := m.Put(key, value); err != nil {
			return fmt.Errorf("write map %s of %d elements: %w", m, m.MaxEntries(), err)
		}
	}
	return nil
}

func removeOthers[K comparable, V any](m *ebpf.Map, want map[K]V) error {
	have, err := readAllOf[K, V](m)
	if err != nil {
		return err
	}
	for key := range have {
		if _, ok := want[key]; ok {
			continue
		}
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove from map %s: %w", m, err)
		}
	}
	return nil
}

func readAll[K comparable](m *ebpf.Map) (map[K]uint32, error) { return readAllOf[K, uint32](m) }

func readAllOf[K comparable, V any](m *ebpf.Map) (map[K]V, error) {
	have := make(map[K]V)
	var key K
	var value V
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		have[key] = value
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read map %s: %w", m, err)
	}
	return have, nil
}
