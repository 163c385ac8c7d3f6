package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"time"
)

// MostAhead is how far the clock of an agent may be ahead of a director's: a report from later than
// that says nothing. That much of drain is lost for waiting for connections that are being opened.
const MostAhead = 5 * time.Second

// AgentReport is what an agent says about the connections of one backend on its host.
type AgentReport struct {
	Backend netip.Addr `json:"backend"`
	// Taken is when the agent began to look: a connection that existed then, and still does, is in
	// the report.
	Taken    time.Time         `json:"taken"`
	Services []ReportedService `json:"services"` // all services that the agent knows of the backend
	// Signals are the signs of strain in the seconds before the report, for services that show any.
	Signals []Signal `json:"signals,omitempty"`
}

// Signal is a sign that a service asks too much of a backend: connections in a second, or
// datagrams of UDP.
type Signal struct {
	ServiceID
	Refused   float64 `json:"refused,omitempty"`   // answered by an RST
	Overflows float64 `json:"overflows,omitempty"` // times that the accept queue, or the receive buffer, was full
}

// ReportedService is where a backend has connections of a service, by one affinity.
type ReportedService struct {
	ServiceID
	Affinity Affinity `json:"affinity"` // that the connections were hashed with
	// Used has the ranges of hashes with a connection. Its size is a power of two: that many equal
	// ranges cover all hashes.
	Used *SlotSet `json:"used"`
}

// The fewest and the most ranges in a report, and how many there are per slot: a range on the
// border of two slots counts for both.
const (
	minReportRanges     = 1 << 14
	maxReportRanges     = 1 << 20
	reportRangesPerSlot = 16
)

// ReportRanges returns how many ranges a report about the service has. Reports may have another
// number, so agents and directors need not agree about the size of the ring.
func (s *Service) ReportRanges() int {
	slots := s.RingSize
	if slots == 0 {
		slots = DefaultRingSize(len(s.Backends))
	}
	ranges := 1 << bits.Len32(slots*reportRangesPerSlot-1)
	return min(max(ranges, minReportRanges), maxReportRanges)
}

// Note adds a connection by its hash.
func (r *ReportedService) Note(hash uint64) {
	r.Used.Add(int(hash >> 32 * uint64(r.Used.Size()) >> 32))
}

// UsedIn reports whether there may be a connection in a slot of a ring.
func (r *ReportedService) UsedIn(slot, slots uint32) bool {
	first := firstHash(uint64(slot), uint64(slots))
	last := firstHash(uint64(slot)+1, uint64(slots)) - 1
	ranges := uint64(r.Used.Size())
	return r.Used.HasAny(int(first*ranges>>32), int(last*ranges>>32))
}

// firstHash returns the smallest upper half of a hash that is in a slot.
func firstHash(slot, slots uint64) uint64 { return (slot<<32 + slots - 1) / slots }

// UnmarshalJSON reads a report that another program may have written.
func (r *AgentReport) UnmarshalJSON(text []byte) error {
	if err := CheckObjects(text); err != nil {
		return fmt.Errorf("a report %w", err)
	}
	var read struct {
		Backend  netip.Addr `json:"backend"`
		Taken    time.Time  `json:"taken"`
		Services []struct {
			ServiceID
			Affinity Affinity `json:"affinity"`
			Used     *string  `json:"used"`
		} `json:"services"`
		Signals []Signal `json:"signals"`
	}
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	texts := make([]*string, len(read.Services))
	for i := range texts {
		texts[i] = read.Services[i].Used
	}
	sets, err := readSlotSets(texts)
	if err != nil {
		return fmt.Errorf("the report of %s %w", read.Backend, err)
	}
	*r = AgentReport{Backend: read.Backend, Taken: read.Taken, Signals: read.Signals}
	if read.Services != nil {
		r.Services = make([]ReportedService, len(sets))
	}
	for i := range sets {
		r.Services[i] = ReportedService{read.Services[i].ServiceID, read.Services[i].Affinity, sets[i]}
	}
	return nil
}

// Check says what is wrong with a report that another program wrote.
func (r *AgentReport) Check() error {
	if !r.Backend.IsValid() {
		return errors.New("a report about nobody")
	}
	for _, s := range r.Services {
		if s.Used == nil || bits.OnesCount(uint(s.Used.Size())) != 1 {
			return fmt.Errorf("the report of %s about %s has no ranges, or not a power of two of them", r.Backend, s.VIP)
		}
	}
	return nil
}

// Of returns what the report says about a service, for the slots of an affinity, or nil.
func (r *AgentReport) Of(id ServiceID, affinity Affinity) *ReportedService {
	for i := range r.Services {
		if r.Services[i].ServiceID == id && r.Services[i].Affinity == affinity {
			return &r.Services[i]
		}
	}
	return nil
}

// IsAbout reports whether the report says anything about a service.
func (r *AgentReport) IsAbout(id ServiceID) bool {
	return slices.ContainsFunc(r.Services, func(s ReportedService) bool { return s.ServiceID == id })
}
