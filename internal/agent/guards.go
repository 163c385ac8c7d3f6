package agent

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/contents"
)

// guards are what a redirector lets in at this host's backends: by address and port, the set of
// prefixes that may send there. A service uses two sets in turn, so that a set in which packets are
// looked up does not change. A set that no guard names any more goes with the next change.
type guards struct {
	at   map[redirectHostEndpoint]redirectGuard
	sets map[uint32]map[redirectGuardSource]uint8
}

// sources are the prefixes of all sets.
func (g *guards) sources() map[redirectGuardSource]uint8 {
	all := map[redirectGuardSource]uint8{}
	for _, set := range g.sets {
		maps.Copy(all, set)
	}
	return all
}

// guard makes the kernel's guards those of the list.
func (r *redirector) guard() error {
	if err := r.forgetUnnamed(); err != nil {
		return err
	}
	want := map[redirectHostEndpoint]redirectGuard{}
	for _, s := range r.list {
		if len(s.callers) == 0 || len(s.here) == 0 {
			continue
		}
		set, err := r.letIn(r.indexes[s.vip], s.callers)
		if err != nil {
			return fmt.Errorf("service %s: source ranges: %w", s.name, err)
		}
		guard := redirectGuard{Service: r.indexes[s.vip], Set: set}
		for _, end := range s.here {
			want[redirectEndpoint(netip.AddrPortFrom(end.Addr(), 0))] = guard
			want[redirectEndpoint(end)] = guard
		}
	}
	if err := contents.Put(r.Guards, want); err != nil {
		return err
	}
	was := r.guards.at
	r.guards.at = want
	there := uint32(0)
	if len(want) > 0 {
		there = 1
	}
	if err := r.Guarded.Set(there); err != nil {
		return fmt.Errorf("switch guards: %w", err)
	}
	return removeKeys(r.Guards, was, func(end redirectHostEndpoint) bool {
		_, stays := want[end]
		return stays
	})
}

// letIn returns a set with these prefixes: the service's present one, if it has the same.
func (r *redirector) letIn(service uint32, callers []netip.Prefix) (uint32, error) {
	named := 2 * service
	for _, guard := range r.guards.at {
		if guard.Service == service {
			named = guard.Set
			break
		}
	}
	build := func(set uint32) map[redirectGuardSource]uint8 {
		keys := map[redirectGuardSource]uint8{}
		for _, p := range callers {
			source := sourceKey(p)
			keys[redirectGuardSource{PrefixLen: 32 + source.PrefixLen, Set: set, Address: redirectAddress(source.Address)}] = 1
		}
		return keys
	}
	if now := r.guards.sets[named]; now == nil || maps.Equal(now, build(named)) {
		return named, r.fill(named, build(named))
	}
	return named ^ 1, r.fill(named^1, build(named^1))
}

// fill writes a set in which no packet is looked up, or that is the same already.
func (r *redirector) fill(set uint32, keys map[redirectGuardSource]uint8) error {
	if maps.Equal(r.guards.sets[set], keys) {
		return nil
	}
	if r.guards.sets == nil {
		r.guards.sets = map[uint32]map[redirectGuardSource]uint8{}
	}
	r.guards.sets[set] = keys // before they are written: keys that are missing may be removed, too
	return contents.Put(r.GuardSources, keys)
}

// forgetUnnamed empties the sets that no guard has named since the change before.
func (r *redirector) forgetUnnamed() error {
	named := map[uint32]bool{}
	for _, guard := range r.guards.at {
		named[guard.Set] = true
	}
	for _, set := range slices.Collect(maps.Keys(r.guards.sets)) {
		if named[set] {
			continue
		}
		if err := removeKeys(r.GuardSources, r.guards.sets[set], func(redirectGuardSource) bool { return false }); err != nil {
			return err
		}
		delete(r.guards.sets, set)
	}
	return nil
}

// removeKeys removes keys from a map, except those that stay.
func removeKeys[K comparable, V any](m *ebpf.Map, keys map[K]V, stays func(K) bool) error {
	for key := range keys {
		if stays(key) {
			continue
		}
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove from map %s: %w", m, err)
		}
	}
	return nil
}
