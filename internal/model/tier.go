package model

import (
	"fmt"
	"slices"
)

// MaxTier is the last tier that a backend may be in, so a service has at most three. Rows name an owner and a backup of each,
// at least: a row over IPv6, of [MaxCandidates6], has no room for more.
const MaxTier = 2

// Tiered reports whether the service's backends are in more than one tier.
func (s *Service) Tiered() bool {
	return slices.ContainsFunc(s.Backends, func(b Backend) bool { return b.Tier > 0 })
}

// ServiceTiers is which tier of a service gets new connections, and why: the first with which, together with those above it,
// enough backends are healthy; the first of all if too few are.
type ServiceTiers struct {
	Active uint8       `json:"active"`
	Needs  uint32      `json:"needs" doc:"min-healthy: how many backends of the active tier and those above it have to be healthy"`
	Tiers  []TierState `json:"tiers"`
}

// TierState is how many backends of a tier may get new connections.
type TierState struct {
	Tier     uint8 `json:"tier"`
	Backends int   `json:"backends" doc:"that would get new connections if all were healthy"`
	Healthy  int   `json:"healthy" doc:"those of them that are"`
}

// Choose makes the tier the active one for which enough backends are healthy.
func (t *ServiceTiers) Choose() {
	healthy := 0
	t.Active = 0
	for _, tier := range t.Tiers {
		if healthy += tier.Healthy; uint32(healthy) >= t.Needs {
			t.Active = tier.Tier
			return
		}
	}
}

// Enough reports whether the active tier and those above it have enough healthy backends.
func (t *ServiceTiers) Enough() bool {
	healthy := 0
	for _, tier := range t.Tiers[:t.Active+1] {
		healthy += tier.Healthy
	}
	return uint32(healthy) >= t.Needs
}

// Why says why the active tier gets new connections, as in "0 of 2 backends of tier 0 are healthy, min-healthy is 1".
func (t *ServiceTiers) Why() string {
	healthy, backends := 0, 0
	tiers := "tier 0"
	upTo := max(1, int(t.Active))
	if !t.Enough() {
		upTo = len(t.Tiers)
	}
	for _, tier := range t.Tiers[:min(upTo, len(t.Tiers))] {
		healthy, backends = healthy+tier.Healthy, backends+tier.Backends
		if tier.Tier > 0 {
			tiers = fmt.Sprintf("tiers 0 to %d", tier.Tier)
		}
	}
	return fmt.Sprintf("%d of %d backends of %s are healthy, min-healthy is %d", healthy, backends, tiers, t.Needs)
}

// Tiers returns how many tiers the service has.
func (s *Service) Tiers() int {
	last := uint8(0)
	for i := range s.Backends {
		last = max(last, s.Backends[i].Tier)
	}
	return int(last) + 1
}

// Tiers returns how many tiers the generation's members are in, counted up to the last one.
func (g *Generation) Tiers() int {
	last := uint8(0)
	for i := range g.Members {
		last = max(last, g.Members[i].Tier)
	}
	return int(last) + 1
}

// InTier returns the generation with the members of one tier. If all of them are in it, they are the same memory.
func (g Generation) InTier(tier uint8) Generation {
	other := func(m Member) bool { return m.Tier != tier }
	if slices.ContainsFunc(g.Members, other) {
		g.Members = slices.DeleteFunc(slices.Clone(g.Members), other)
	}
	return g
}

// InTier returns the log with the members of one tier.
func (l Log) InTier(tier uint8) Log {
	all := l.Generations
	l.Generations = make([]Generation, len(all))
	for i := range all {
		l.Generations[i] = all[i].InTier(tier)
	}
	return l
}

// tiers checks that the backends' tiers are those that a service may have, and follow each other.
func (v *validation) tiers(i int) {
	s := &v.config.Services[i]
	var has [MaxTier + 1]bool
	for j := range s.Backends {
		if tier := s.Backends[j].Tier; tier <= MaxTier {
			has[tier] = true
		}
	}
	for j := range s.Backends {
		switch tier := s.Backends[j].Tier; {
		case tier > MaxTier:
			v.errs.add(backendPath(i, j, "tier"), "%d is out of range 0 to %d", tier, MaxTier)
		case tier > 0 && !has[tier-1]:
			v.errs.add(backendPath(i, j, "tier"), "%d comes after tier %d, and no backend of the service is in tier %d", tier, tier-1, tier-1)
			has[tier-1] = true // said once
		}
	}
}
