package engine

import (
	"net/netip"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// known is the input of a service's memberships, and the result: most services do not
// change from one plan to the next.
type known struct {
	policy   model.Policy
	mode     model.Mode
	protocol model.Protocol
	affinity model.Affinity
	ringSize uint32
	shares   bool // shares change
	backends []knownBackend
	given    model.Log

	log    model.Log
	tiers  []memberships // nil: nothing is known
	report ServiceReport
}

type knownBackend struct {
	endpoint netip.AddrPort
	weight   uint16
	state    model.BackendState
	tier     uint8
	mode     model.Mode
	host     bool // in IPv6
}

func knownOf(s *model.Service, b *model.Backend) knownBackend {
	return knownBackend{b.Endpoint(), b.Weight, b.State, b.Tier, b.ModeIn(*s), b.Host.Is6()}
}

// learn makes the memberships and the report of a service and its log, if they are not known
// already.
func (k *known) learn(s *model.Service, given model.Log) {
	if k.tiers != nil && k.is(s, given) {
		return
	}
	*k = known{policy: s.Policy, mode: s.Mode, protocol: s.Protocol, affinity: s.PlacedBy(), ringSize: s.RingSize, shares: s.SharesChange(), given: given, log: given}
	k.backends = make([]knownBackend, len(s.Backends))
	for i := range s.Backends {
		k.backends[i] = knownOf(s, &s.Backends[i])
	}
	if len(given.Generations) == 0 {
		k.log = history.Advance(given, s, time.Time{})
	}
	k.tiers, k.report = membershipsOf(s, k.log), newServiceReport(s, k.log)
}

// is says whether everything from which memberships and reports are made is unchanged. Logs are not
// written to: the same memory has the same log.
func (k *known) is(s *model.Service, given model.Log) bool {
	if k.policy != s.Policy || k.mode != s.Mode || k.protocol != s.Protocol || k.affinity != s.PlacedBy() || k.ringSize != s.RingSize || k.shares != s.SharesChange() ||
		len(k.backends) != len(s.Backends) || k.given.Coming != given.Coming ||
		!model.SameMemory(k.given.Generations, given.Generations) || !model.SameMemory(k.given.Steps, given.Steps) || !model.SameMemory(k.given.Strained, given.Strained) {
		return false
	}
	for i := range s.Backends {
		if k.backends[i] != knownOf(s, &s.Backends[i]) {
			return false
		}
	}
	return true
}

// reportOf is the report about the service without its health.
func (k *known) reportOf(s *model.Service) ServiceReport {
	r := k.report
	r.Name, r.ID = s.Name, s.ID()
	return r
}
