package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/bits"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

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
// that is in the kernel already keeps its index and so its counters.
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
	free := newIndexes(limit, maps.Values(endpoints), maps.Values(ranges))
	var flags bpfHostServiceFlag
	if p.keepsAll {
		flags |= bpfHostServiceFlagHOST_SERVICE_KEEPS_ALL
	}
	for _, s := range p.services {
		index := current(s, endpoints, ranges)
		if (index == noService || t.has(index)) && !free.allocate(&index) {
			return tables{}, fmt.Errorf("service %s: a host can have %d services and VIPs", s.describe(), limit-1)
		}
		t.add(s, index, flags)
	}
	t.fresh = free.taken
	return t, nil
}

// indexes are those of services. One that is in use is not given to another service, because packets
// may still be looking at it.
type indexes struct {
	used        map[uint32]bool
	next, limit uint32
	taken       []uint32 // their counters are old
}

func newIndexes(limit uint32, known ...iter.Seq[uint32]) *indexes {
	i := &indexes{used: map[uint32]bool{noService: true}, next: noService, limit: limit}
	for _, list := range known {
		for index := range list {
			i.used[index] = true
		}
	}
	return i
}

// allocate sets an index to a free one; false: there is none.
func (i *indexes) allocate(index *uint32) bool {
	for i.used[i.next] {
		i.next++
	}
	if i.next >= i.limit {
		return false
	}
	*index, i.used[i.next] = i.next, true
	i.taken = append(i.taken, i.next)
	return true
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

// addPods writes down a service's pods, by the names that directors use and by their addresses. If
// two have the same name, or in ipip the same address, the first one gets all packets.
func (t *tables) addPods(s service, index uint32) {
	for _, p := range s.pods {
		value := bpfPod{Address: address(p.address), Port: networkOrder(p.port), Name: p.wireName()}
		for _, end := range []bpfPodEnd{{Address: value.Address}, {Address: value.Address, Service: index}} {
			if _, taken := t.podEnds[end]; !taken {
				t.podEnds[end] = value
			}
		}
		name := bpfPodName{Service: index, Name: value.Name}
		if _, taken := t.podNames[name]; !taken {
			t.podNames[name] = value
		}
	}
}

// wireName is the name as the number whose bytes in memory are those on the wire.
func (p pod) wireName() uint32 {
	return binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, p.name))
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
	list := t.maps(m, nil)
	if len(t.podNames) == 0 {
		list = list[1:] // former pods may still be here
	}
	return contents.PutAll(list)
}

// prune removes what must not be there, in the opposite order. Former backends are remembered for a
// while.
func (t *tables) prune(m *bpfMaps, former formerPeers) error {
	list := t.maps(m, former)
	return errors.Join(contents.PruneAll(list), list[0].Put())
}

// maps are the maps in the order in which they are written: the first one says whether packets that
// leave may be pods'. Services and namespaces are arrays: further elements there belong to no
// service.
func (t *tables) maps(m *bpfMaps, former formerPeers) []contents.Map {
	peers := contents.Whole("peers", m.Peers, former.with(t.peers))
	peers.Prune = func() error { return former.retire(m.Peers, t.peers, t.services, now()) }
	return []contents.Map{
		contents.Within("pods_here", m.PodsHere, map[uint32]uint32{0: uint32(min(1, len(t.podNames)))}),
		contents.Whole("pod_names", m.PodNames, t.podNames),
		contents.Whole("pod_ends", m.PodEnds, t.podEnds),
		contents.Within("namespaces", m.Namespaces, t.namespaces),
		contents.Within("services", m.Services, t.services),
		peers,
		contents.Whole("sources", m.Sources, t.sources),
		contents.Whole("endpoints", m.Endpoints, t.endpoints),
		contents.Whole("ranges", m.Ranges, t.ranges),
		contents.Whole("tunnel_ends", m.TunnelEnds, t.ends),
	}
}

func readAll[K comparable](m *ebpf.Map) (map[K]uint32, error) { return contents.Read[K, uint32](m) }

// address writes an address as the maps have it: IPv4 as ::ffff:a.b.c.d.
func address(a netip.Addr) bpfAddress { return bpfAddress{Bytes: a.As16()} }

// networkOrder returns the number whose bytes in memory are the port's in network
// order.
func networkOrder(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}

// endpoint returns the key of a service with one port, or of a VIP.
func (s service) endpoint() bpfHostEndpoint {
	key := bpfHostEndpoint{Address: address(s.vip), Port: networkOrder(s.port.First), Protocol: uint8(s.protocol)}
	switch {
	case s.protocol != 0:
	case s.vip.Is4():
		key.Protocol = unix.IPPROTO_ICMP
	default:
		key.Protocol = unix.IPPROTO_ICMPV6
	}
	return key
}

// isRange says whether the service's keys are ranges.
func (s service) isRange() bool { return s.protocol != 0 && !s.port.Single() }

// ranges returns the keys of a service with several ports: the prefixes that together make up its
// range.
func (s service) ranges() []bpfHostRange {
	const fixed = 8 * (16 + 1 + 1) // address, protocol and padding
	var keys []bpfHostRange
	key := bpfHostRange{Address: address(s.vip), Protocol: uint8(s.protocol)}
	if s.port.All() {
		key.PrefixLen = fixed
		return append(keys, key)
	}
	for first, end := uint32(s.port.First), uint32(s.port.Last)+1; first < end; {
		size := uint32(1) << min(bits.TrailingZeros32(first), bits.Len32(end-first)-1)
		key.PrefixLen = fixed + 16 - uint32(bits.TrailingZeros32(size))
		key.Port = networkOrder(uint16(first))
		keys = append(keys, key)
		first += size
	}
	return keys
}

// sourceKey returns the LPM key of a prefix.
func sourceKey(p netip.Prefix) bpfHostSource {
	length := p.Bits()
	if p.Addr().Is4() {
		length += 96
	}
	return bpfHostSource{PrefixLen: uint32(length), Address: address(p.Addr())}
}

// describe names a service for errors.
func (s service) describe() string {
	if s.protocol == 0 {
		return s.vip.String()
	}
	return s.name + " (" + s.vip.String() + " " + s.protocol.String() + " " + s.port.String() + ")"
}

// peerGrace is how long packets may still go on to a backend that a service no longer has:
// directors that have not read the change yet name it in rows. No packets are accepted from it any
// more.
const peerGrace = 10 * time.Minute

// Flags of a peer: it is a backend of the service, or it was one.
const (
	currentPeer = uint32(bpfHostPeerFlagHOST_PEER_SENDS)
	formerPeer  = uint32(0)
)

// formerPeers are the backends that services no longer have, and when they left.
type formerPeers map[bpfHostPeer]time.Duration

// retire makes peers former that are not wanted, and removes those that have been former for long
// enough, or whose service is no longer here: its index may become another service's.
func (f formerPeers) retire(m *ebpf.Map, want map[bpfHostPeer]uint32, services map[uint32]bpfHostService, now time.Duration) error {
	have, err := readAll[bpfHostPeer](m)
	if err != nil {
		return err
	}
	for peer := range f {
		_, there := have[peer]
		if _, wanted := want[peer]; wanted || !there {
			delete(f, peer)
		}
	}
	for peer, flags := range have {
		if _, wanted := want[peer]; wanted {
			continue
		}
		left, known := f[peer]
		if !known {
			left = now
			f[peer] = now
		}
		_, served := services[peer.Service]
		switch {
		case !served || now-left >= peerGrace:
			delete(f, peer)
			if err := m.Delete(peer); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("remove a former backend: %w", err)
			}
		case flags != formerPeer:
			if err := m.Put(peer, formerPeer); err != nil {
				return fmt.Errorf("mark a former backend: %w", err)
			}
		}
	}
	return nil
}

// with returns these peers and the former ones: what the map must have.
func (f formerPeers) with(peers map[bpfHostPeer]uint32) map[bpfHostPeer]uint32 {
	all := maps.Clone(peers)
	for peer := range f {
		if _, is := all[peer]; !is {
			all[peer] = formerPeer
		}
	}
	return all
}

// agePeers forgets former backends in time. The agent's lock is held.
func (a *Agent) agePeers() error {
	if len(a.former) == 0 {
		return nil
	}
	return a.former.retire(a.objects.Peers, a.tables.peers, a.tables.services, now())
}
