package datapath

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
)

// sources are the source ranges of services in the kernel, in sets. A ring names its service's set,
// and a switch of rings changes sets, because a set must not change while packets look at it. So
// each service uses two sets in turn, and between two changes only the one that its ring names.
type sources struct {
	kernel *ebpf.Map
	sets   map[uint32]map[netip.Prefix]bool
	left   map[uint32]bool // sets that no ring names: to be emptied once no packet looks at them
}

// sourceBits are the bits of struct source_range before the address.
const sourceBits = 32

// readSources finds out what an earlier process left. All sets count as left until a ring names
// them.
func readSources(m *ebpf.Map) (*sources, error) {
	s := &sources{kernel: m, sets: map[uint32]map[netip.Prefix]bool{}, left: map[uint32]bool{}}
	var key abi.SourceRange
	var there uint8
	all := m.Iterate()
	for all.Next(&key, &there) {
		s.left[key.Set] = true
		s.note(key.Set, prefixOf(&key))
	}
	if err := all.Err(); err != nil {
		return nil, fmt.Errorf("read source ranges: %w", err)
	}
	return s, nil
}

// prefixOf is a key's prefix. It need not say the family: keys of IPv4 have nothing behind their
// fourth byte, and no more bits than that.
func prefixOf(key *abi.SourceRange) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16(key.Address.Bytes), int(key.PrefixLen)-sourceBits)
}

// sourceKey is the key of a prefix in a set.
func sourceKey(set uint32, p netip.Prefix) abi.SourceRange {
	return abi.SourceRange{PrefixLen: sourceBits + uint32(p.Bits()), Set: set, Address: abi.AddressBytes(p.Addr())}
}

func (s *sources) note(set uint32, p netip.Prefix) {
	if s.sets[set] == nil {
		s.sets[set] = map[netip.Prefix]bool{}
	}
	s.sets[set][p] = true
}

// wantedSet has the prefixes in the form of keys, each once.
func wantedSet(ranges []netip.Prefix) map[netip.Prefix]bool {
	wanted := make(map[netip.Prefix]bool, len(ranges))
	for _, p := range ranges {
		key := sourceKey(0, p)
		wanted[prefixOf(&key)] = true
	}
	return wanted
}

// setFor is the set for a service's next ring: the one that its present ring names, if that has
// these ranges, otherwise the other one.
func (s *sources) setFor(index uint32, ring ringImage, ranges []netip.Prefix) uint32 {
	set, named := namedSet(ring)
	if !named {
		return 2 * index
	}
	if maps.Equal(s.sets[set], wantedSet(ranges)) {
		return set
	}
	return set ^ 1
}

// namedSet is the set that a ring names; false: its service is for all clients, or there is no
// ring.
func namedSet(ring ringImage) (uint32, bool) {
	if len(ring) == 0 {
		return 0, false
	}
	header := (*abi.RingHeader)(unsafe.Pointer(&ring[0]))
	return header.Sources, header.Flags&uint8(abi.RingFlagRING_SOURCES) != 0
}

// write fills a set before a ring names it. The set has other prefixes than these only if a change
// was interrupted.
func (s *sources) write(set uint32, ranges []netip.Prefix, readers *grace, h hands) error {
	wanted := wantedSet(ranges)
	if maps.Equal(s.sets[set], wanted) {
		return nil
	}
	if len(s.sets[set]) > 0 {
		if err := readers.wait(); err != nil {
			return err
		}
		if err := s.empty(set); err != nil {
			return err
		}
	}
	for _, p := range ranges {
		key := sourceKey(set, p)
		if err := exchange(s.kernel, "source_ranges", key, uint8(1), 0, s.sets[set][prefixOf(&key)], h); err != nil {
			return fmt.Errorf("write source range %s: %w", p, err)
		}
		s.note(set, prefixOf(&key))
	}
	return nil
}

// all are the entries of all sets.
func (s *sources) all() map[abi.SourceRange]uint8 {
	all := map[abi.SourceRange]uint8{}
	for set, prefixes := range s.sets {
		for p := range prefixes {
			all[sourceKey(set, p)] = 1
		}
	}
	return all
}

// switched notes that one ring has replaced another, each of which may name a set.
func (s *sources) switched(was, is ringImage) {
	old, hadOne := namedSet(was)
	set, hasOne := namedSet(is)
	if hadOne && !(hasOne && old == set) {
		s.left[old] = true
	}
	if hasOne {
		delete(s.left, set)
	}
}

// leave gives up the sets of a service that is about to go.
func (s *sources) leave(index uint32) {
	for _, set := range []uint32{2 * index, 2*index + 1} {
		if len(s.sets[set]) > 0 {
			s.left[set] = true
		}
	}
}

// clean empties the sets that no ring names and no packet looks at any more.
func (s *sources) clean() error {
	for set := range s.left {
		if err := s.empty(set); err != nil {
			return err
		}
		delete(s.left, set)
	}
	return nil
}

func (s *sources) empty(set uint32) error {
	for p := range s.sets[set] {
		if err := s.remove(set, p); err != nil {
			return err
		}
	}
	delete(s.sets, set)
	return nil
}

// remove takes a prefix, as keys have it, out of a set.
func (s *sources) remove(set uint32, p netip.Prefix) error {
	if err := s.kernel.Delete(sourceKey(set, p)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove source range %s: %w", p, err)
	}
	delete(s.sets[set], p)
	return nil
}

// kernelSet is KERNEL_SOURCES_SET, for IPv4; the set before it is for IPv6. The sets of services
// have far lower numbers.
const kernelSet = 0xffffffff

// kernelSets divides prefixes among the two sets.
func kernelSets(list []netip.Prefix) map[uint32][]netip.Prefix {
	sets := map[uint32][]netip.Prefix{kernelSet: nil, kernelSet - 1: nil}
	for _, p := range list {
		set := uint32(kernelSet)
		if p.Addr().Is6() {
			set--
		}
		sets[set] = append(sets[set], p)
	}
	return sets
}

// leaveToKernel sets the sources whose packets the kernel gets, for services that leave packets to
// it. Packets look at these sets meanwhile, so prefixes come and go one by one.
func (s *sources) leaveToKernel(list []netip.Prefix, h hands) error {
	for set, prefixes := range kernelSets(list) {
		delete(s.left, set)
		wanted := wantedSet(prefixes)
		for _, p := range prefixes {
			key := sourceKey(set, p)
			if at := prefixOf(&key); !s.sets[set][at] {
				if err := exchange(s.kernel, "source_ranges", key, uint8(1), 0, false, h); err != nil {
					return fmt.Errorf("write kernel source %s: %w", p, err)
				}
				s.note(set, at)
			}
		}
		for p := range s.sets[set] {
			if wanted[p] {
				continue
			}
			if err := s.remove(set, p); err != nil {
				return err
			}
		}
	}
	return nil
}
