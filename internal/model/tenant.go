package model

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// SegmentLimits bound how much of a director's limits one segment may take.
type SegmentLimits struct {
	ShareLimits  `json:",inline"`
	SegmentQuota `json:",inline"`
}

// SegmentQuota is what one segment may have of the datapath. Zero is no bound.
type SegmentQuota struct {
	Flows            uint32 `json:"flows,omitempty"`              // of its services in flow memory, and of full NAT the same part; one of IPv6 counts as two
	PacketsPerSecond uint32 `json:"packets-per-second,omitempty"` // to its services
}

// The bounds of a quota: fewer packets could not be counted evenly.
const (
	MinSegmentPackets = 100
	MaxSegmentPackets = 1 << 30
)

// LeastFlowsPart is the least part of the director's flows that a segment may have, as its reciprocal: two of the
// places in 16 neighboring buckets of flow memory, as many as a flow of IPv6 takes. With a smaller part most flows
// would find no place of their segment among the few buckets that each may be in (bpf/director/quota_number.h).
const LeastFlowsPart = 128

// Quotas returns the quotas of the segments that have one: those that the configuration names, and those in which its
// services and backends are.
func (c *Config) Quotas() map[Segment]SegmentQuota {
	if !c.LimitsSegments() {
		return nil
	}
	quotas, seen := map[Segment]SegmentQuota{}, map[Segment]bool{}
	add := func(id Segment) {
		if seen[id] {
			return
		}
		seen[id] = true
		if limits, _ := c.LimitsOf(id); limits.SegmentQuota != (SegmentQuota{}) {
			quotas[id] = limits.SegmentQuota
		}
	}
	for i := range c.Segments {
		add(c.Segments[i].ID)
	}
	for i := range c.Services {
		s := &c.Services[i]
		add(s.Segment)
		for j := range s.Backends {
			if in := s.Backends[j].Segment; in != nil {
				add(*in)
			}
		}
	}
	return quotas
}

// FairShare is how much each may have at most of what has room for so much, where they want these, which it sorts: at
// least 1.
func FairShare(wants []int, most int) int {
	slices.Sort(wants)
	for i, want := range wants {
		if share := most / (len(wants) - i); want > share {
			return max(1, share)
		}
		most -= want
	}
	return math.MaxInt
}

// quotas checks the quotas that segments have.
func (v *validation) quotas() {
	check := func(path string, q SegmentQuota) {
		most := v.config.Director.Limits.Flows
		least := (most + LeastFlowsPart - 1) / LeastFlowsPart
		switch {
		case q.Flows > most:
			v.errs.addWithOther(path+".flows", "director.limits.flows", "%d is more than director.limits.flows, %d", q.Flows, most)
		case q.Flows > 0 && q.Flows < least:
			v.errs.addWithOther(path+".flows", "director.limits.flows", "%d is less than a %dth of director.limits.flows, %d: the least is %d", q.Flows, LeastFlowsPart, most, least)
		}
		if q.PacketsPerSecond != 0 {
			v.limit(path+".packets-per-second", uint64(q.PacketsPerSecond), MinSegmentPackets, MaxSegmentPackets)
		}
	}
	check("director.segment-limits", v.config.Director.SegmentLimits.SegmentQuota)
	for i := range v.config.Segments {
		if l := v.config.Segments[i].Limits; l != nil {
			check(fmt.Sprintf("segments[%d].limits", i), l.SegmentQuota)
		}
	}
}

// Each returns all limits; Most is 0 where there is none.
func (l *SegmentLimits) Each() []Excess {
	return append(l.ShareLimits.Each(), Excess{"flows", uint64(l.Flows), 0}, Excess{"packets-per-second", uint64(l.PacketsPerSecond), 0})
}

// LimitsOf returns the limits of a segment, and the key that has them; "": it has none.
func (c *Config) LimitsOf(id Segment) (SegmentLimits, string) {
	for i := range c.Segments {
		if s := &c.Segments[i]; s.ID == id && s.Limits != nil {
			return *s.Limits, fmt.Sprintf("segments[%d].limits", i)
		}
	}
	if id == (Segment{}) || c.Director.SegmentLimits == (SegmentLimits{}) {
		return SegmentLimits{}, ""
	}
	return c.Director.SegmentLimits, "director.segment-limits"
}

// LimitsSegments reports whether some segment has limits.
func (c *Config) LimitsSegments() bool {
	return c.Director.SegmentLimits != (SegmentLimits{}) || slices.ContainsFunc(c.Segments, func(s SegmentSettings) bool { return s.Limits != nil })
}

// countsIn returns the segment in which a backend counts: the tenant's network that it is in, or else that of
// its service, which must not be without a bound there.
func countsIn(of, service Segment) Segment {
	if of == (Segment{}) {
		return service
	}
	return of
}

// UsageBySegment counts what services use, by segment.
func UsageBySegment(lists ...[]Service) map[Segment]Usage {
	all, sizes := map[Segment]Usage{}, ringSizes{}
	for _, services := range lists {
		for i := range services {
			s := &services[i]
			of := all[s.Segment]
			of.Add(Usage{Services: 1, RingMemory: sizes.memory(s), SourceRanges: uint64(len(s.SourceRanges))})
			all[s.Segment] = of
			for j := range s.Backends {
				at := countsIn(s.Backends[j].TenantIn(s), s.Segment)
				of := all[at]
				of.Backends++
				of.ProbesPerHour += s.probesPerHour(&s.Backends[j])
				all[at] = of
			}
		}
	}
	return all
}

// SegmentExcess is a limit that a segment exceeds.
type SegmentExcess struct {
	Segment Segment
	Key     string // that has the limit
	Excess
}

// String says so.
func (e SegmentExcess) String() string {
	return fmt.Sprintf("segment %s may have %s by %s, and has %d with this", e.Segment, e.amount(), e.Key, e.Has)
}

// ExceededSegments returns the limits that segments exceed, and by more than they did before.
func (c *Config) ExceededSegments(now, before map[Segment]Usage) (all []SegmentExcess) {
	for _, id := range slices.SortedFunc(maps.Keys(now), Segment.Compare) {
		limits, key := c.LimitsOf(id)
		for _, e := range limits.Exceeded(now[id], before[id]) {
			all = append(all, SegmentExcess{id, key, e})
		}
	}
	return all
}

// segmentLimits checks that the services of the director's own file fit in their segments' limits. Those of sets
// are checked when these are put: what runs goes on after a limit is lowered.
func (v *validation) segmentLimits() {
	c := v.config
	if !c.LimitsSegments() {
		return
	}
	for _, e := range c.ExceededSegments(UsageBySegment(c.Services[:v.own]), nil) {
		v.errs.addWithOther(e.Key+"."+e.Limit, "services", "segment %s may have %s, and has %d", e.Segment, e.amount(), e.Has)
	}
}

// SegmentCounts are what one segment uses of a director, and what its services count. A service counts
// in the segment of its VIP, with its packets, flows and rings; a backend in the segment that it is in, or with its service if that is none.
type SegmentCounts struct {
	ID           Segment `json:"-"`
	Services     int     `json:"services" doc:"whose VIPs are in it"`
	Backends     int     `json:"backends" doc:"that are in it, or of its services and in no tenant's network; once per service"`
	RingMemory   uint64  `json:"ring-memory" doc:"bytes of its services' rings"`
	SourceRanges int     `json:"source-ranges" doc:"of its services"`
	Probes       uint64  `json:"probes-per-second" doc:"of health checks, that the intervals of its backends ask for"`
	Flows        int     `json:"flows" doc:"of its services, in flow memory"`
	Packets      uint64  `json:"packets" doc:"that were forwarded, also those of services that are gone, since the director's process began"`
	Bytes        uint64  `json:"bytes"`
	Opened       uint64  `json:"opened" doc:"TCP connections: SYNs that were forwarded, including those sent again"`
	Dropped      uint64  `json:"dropped" doc:"packets of its services that no backend got"`
	Limited      uint64  `json:"limited" doc:"packets to its services, and questions that the director answers there, that were more than its limit of packets per second"`
	FlowsRefused uint64  `json:"flows-refused" doc:"flows that are not remembered, because it has all that it may have"`
	// Limits bound what it uses.
	Limits *SegmentLimits `json:"limits,omitempty" doc:"that it has; none: it has no bound of its own"`
}

// Use returns what the segment uses of what can be limited.
func (c *SegmentCounts) Use() Usage {
	return Usage{Services: uint64(c.Services), Backends: uint64(c.Backends), RingMemory: c.RingMemory, SourceRanges: uint64(c.SourceRanges)}
}

// SegmentSums adds up what services use and count, by segment. The zero value has none.
type SegmentSums struct{ of map[Segment]*SegmentCounts }

// At returns the sums of a segment, to which the caller adds.
func (s *SegmentSums) At(id Segment) *SegmentCounts {
	if s.of == nil {
		s.of = map[Segment]*SegmentCounts{}
	}
	if s.of[id] == nil {
		s.of[id] = &SegmentCounts{ID: id}
	}
	return s.of[id]
}

// Add adds what a service counts. Its rings are not known by its status.
func (s *SegmentSums) Add(service *ServiceStatus) {
	of := s.At(service.Segment)
	of.Services++
	of.SourceRanges += len(service.SourceRanges)
	of.Flows += service.Remembered
	of.Packets, of.Bytes, of.Opened, of.Dropped = of.Packets+service.Packets, of.Bytes+service.Bytes, of.Opened+service.Opened, of.Dropped+service.Dropped
	for i := range service.Backends {
		s.At(countsIn(service.Backends[i].Segment, service.Segment)).Backends++
	}
}

// List returns all of them, in the order of the segments' keys.
func (s *SegmentSums) List() []SegmentCounts {
	list := []SegmentCounts{}
	for _, id := range slices.SortedFunc(maps.Keys(s.of), Segment.Compare) {
		list = append(list, *s.of[id])
	}
	return list
}

// OutsideSegments says what of services a client may not have that is for these segments alone: what is elsewhere,
// and what says where hosts are, or is the director's.
func OutsideSegments(services []Service, only []Segment) (errs FieldErrors) {
	refuse := func(path string, in Segment, what string) {
		if !slices.Contains(only, in) {
			errs.add(path, "%s is in segment %s, and the client is for %s alone", what, in, SegmentList(only))
		}
	}
	for i := range services {
		s := &services[i]
		refuse(servicePath(i, "segment"), s.Segment, "the VIP")
		for _, of := range []struct {
			key   string
			given bool
		}{{"ask-redirect", s.AskRedirect}, {"kernel-sources", s.KernelSources}, {"mode", s.Mode == Redirect}, {"redirect-to", len(s.RedirectTo) > 0}} {
			if of.given {
				errs.add(servicePath(i, of.key), "is not for clients of segments")
			}
		}
		for j := range s.Backends {
			b := &s.Backends[j]
			if b.Segment != nil || b.TenantIn(s) != s.Segment { // else it is said of the VIP
				refuse(backendPath(i, j, "segment"), b.TenantIn(s), "the backend")
			}
			for _, of := range []struct {
				key   string
				given bool
			}{{"geneve-options", b.GeneveOptions != ""}, {"host", b.Host.IsValid()}, {"interface", b.Interface != ""}, {"mac", !b.MAC.IsZero()}, {"vni", b.VNI != 0}, {"vtep", b.VTEP.IsValid()}} {
				if of.given {
					errs.add(backendPath(i, j, of.key), "is not for clients of segments: it says where packets leave the segment")
				}
			}
		}
	}
	return errs
}

// SegmentList names segments.
func SegmentList(list []Segment) string {
	names := make([]string, len(list))
	for i, s := range list {
		names[i] = s.String()
	}
	return strings.Join(names, ", ")
}
