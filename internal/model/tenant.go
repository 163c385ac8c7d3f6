package model

import (
	"maps"
	"slices"
)

// SegmentCounts are what one segment uses of a director, and what its services count. A service counts
// in the segment of its VIP, with its packets, flows and rings; a backend in the segment that it is in.
type SegmentCounts struct {
	ID           Segment `json:"-"`
	Services     int     `json:"services" doc:"whose VIPs are in it"`
	Backends     int     `json:"backends" doc:"that are in it, once per service"`
	RingMemory   uint64  `json:"ring-memory" doc:"bytes of its services' rings"`
	SourceRanges int     `json:"source-ranges" doc:"of its services"`
	Flows        int     `json:"flows" doc:"of its services, in flow memory"`
	Packets      uint64  `json:"packets" doc:"that were forwarded, also those of services that are gone, since the director's process began"`
	Bytes        uint64  `json:"bytes"`
	Opened       uint64  `json:"opened" doc:"TCP connections: SYNs that were forwarded, including those sent again"`
	Dropped      uint64  `json:"dropped" doc:"packets of its services that no backend got"`
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
		s.At(service.Backends[i].Segment).Backends++
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
