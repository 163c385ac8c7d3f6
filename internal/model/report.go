package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

// MostAhead is how far the clock of an agent may be ahead of a director's: a report from later than
// that says nothing. That much of drain is lost for waiting for connections that are being opened.
const MostAhead = 5 * time.Second

// AgentReport is what an agent says about the connections of one backend on its host.
type AgentReport struct {
	Backend netip.Addr `json:"backend"`
	// Segment is the tenant's network that the backend's address is in; the zero value: no tenant's.
	Segment Segment `json:"segment,omitzero"`
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
		Segment  Segment    `json:"segment"`
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
	*r = AgentReport{Backend: read.Backend, Segment: read.Segment, Taken: read.Taken, Signals: read.Signals}
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

// At returns whose report it is.
func (r *AgentReport) At() HostAddress { return HostAddress{r.Segment, r.Backend} }

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

// Bounds on texts that other programs may have written: what agents report, and documents. A few
// bytes of text can stand for a large set of slots, or for an element of a list with all its
// defaults.
const (
	mostSlotBytes = 16 << 20 // of sets of slots, in one text
	objectBytes   = 16       // a text has at least so many bytes for each object or null in it
	fewObjects    = 64       // or no more than these
)

// CheckObjects refuses a text, of documents or a report, that has more objects than weir writes in so
// many bytes: each may stand for an element with all its defaults.
func CheckObjects(text []byte) error {
	objects := bytes.Count(text, []byte("{")) + bytes.Count(text, []byte("null"))
	if most := fewObjects + len(text)/objectBytes; objects > most {
		return fmt.Errorf("has %d objects in %d bytes, more than %d", objects, len(text), most)
	}
	return nil
}

// readSlotSets reads sets of slots, unless all of them together take more than they may; nil stays
// nil.
func readSlotSets(texts []*string) ([]*SlotSet, error) {
	bytes := 0
	for _, text := range texts {
		if text == nil {
			continue
		}
		size, _, _ := strings.Cut(*text, " ")
		if n, err := strconv.Atoi(size); err == nil && n > 0 && n <= maxSlotSet {
			bytes += n / 8
		}
		if bytes > mostSlotBytes {
			return nil, fmt.Errorf("has sets of slots of more than %d bytes", mostSlotBytes)
		}
	}
	sets := make([]*SlotSet, len(texts))
	for i, text := range texts {
		if text == nil {
			continue
		}
		sets[i] = &SlotSet{}
		if err := sets[i].UnmarshalText([]byte(*text)); err != nil {
			return nil, err
		}
	}
	return sets, nil
}

// SizeOf returns about how many bytes services take with their lists, without what aliases of a
// text or other services may share, such as names.
func SizeOf(services []Service) (bytes int) {
	bytes = len(services) * int(unsafe.Sizeof(Service{}))
	for i := range services {
		s := &services[i]
		bytes += len(s.Backends)*int(unsafe.Sizeof(Backend{})) + len(s.SourceRanges)*int(unsafe.Sizeof(s.SourceRanges[0]))
	}
	return bytes
}

// Size returns about how many bytes the report takes.
func (r *AgentReport) Size() int {
	size := int(unsafe.Sizeof(*r)) + len(r.Services)*int(unsafe.Sizeof(ReportedService{})) + len(r.Signals)*int(unsafe.Sizeof(Signal{}))
	for i := range r.Services {
		if used := r.Services[i].Used; used != nil {
			size += used.Size() / 8
		}
	}
	return size
}
