package agent

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/contents"
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
	fresh      []uint32 // newly given indexes, whose counters are old
}

// noService is the index that the programs take for "none".
const noService = 0

// newTables gives every service an index and writes the plan down as keys and values. A service
// that is in the kernel already keeps its index and so its counters. An index that another service
// uses is not taken, because packets may still be looking at it.
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
		contents.Put(m.PodsHere, t.podsHere(1)),
		contents.Put(m.PodNames, t.podNames),
		contents.Put(m.PodEnds, t.podEnds),
		contents.Put(m.Namespaces, t.namespaces),
		contents.Put(m.Services, t.services),
		contents.Put(m.Peers, t.peers),
		contents.Put(m.Sources, t.sources),
		contents.Put(m.Endpoints, t.endpoints),
		contents.Put(m.Ranges, t.ranges),
		contents.Put(m.TunnelEnds, t.ends))
}

// prune removes what must not be there, in the opposite order. Former backends are remembered for a
// while.
func (t *tables) prune(m *bpfMaps, former formerPeers) error {
	return errors.Join(
		contents.Prune(m.TunnelEnds, t.ends),
		contents.Prune(m.Ranges, t.ranges),
		contents.Prune(m.Endpoints, t.endpoints),
		contents.Prune(m.Sources, t.sources),
		former.retire(m.Peers, t.peers, t.services, now()),
		contents.Prune(m.PodEnds, t.podEnds),
		contents.Prune(m.PodNames, t.podNames),
		contents.Put(m.PodsHere, t.podsHere(0)))
}

func readAll[K comparable](m *ebpf.Map) (map[K]uint32, error) { return contents.Read[K, uint32](m) }
