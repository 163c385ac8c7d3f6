package model

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Steering has the NICs of a director's interfaces lead the packets of the largest flows to receive queues of
// their own, for whose packets the director does fewer lookups.
type Steering struct {
	// Queues are receive queues of each interface that are for this alone; none: no flow is steered.
	Queues QueueRange `json:"queues,omitzero"`
	// Interfaces are those of director.interfaces whose NICs steer flows; none: all.
	Interfaces []string `json:"interfaces,omitempty"`
	Flows      uint32   `json:"flows,omitempty"`              // rules on each interface
	Packets    uint32   `json:"packets-per-second,omitempty"` // a flow with fewer gets no rule
}

// The defaults and bounds of steering. The NIC of "Hybrid Network Load Balancer" (HNLB) has 2,000 to 8,000
// rules.
const (
	DefaultSteeredFlows   = 2000
	DefaultSteeredPackets = 1000
	MaxSteeredFlows       = 65536
	MaxSteeredPackets     = 100_000_000
	// MaxSteeredQueue is STEERED_QUEUES - 1 in bpf/abi/steering_types.h.
	MaxSteeredQueue = 255
	// MaxSteeredInterfaces is half of the places that 1 << STEERED_INTERFACES_BITS gives.
	MaxSteeredInterfaces = 8
)

// SteeringFix says what to do about an interface whose NIC steers no flows.
const SteeringFix = "remove director.steering, or name other interfaces in director.steering.interfaces (ethtool -l and -k show queues and filters); meanwhile packets take the usual way"

// Given reports whether flows are to be steered.
func (s *Steering) Given() bool { return s.Queues != QueueRange{} }

// On returns the interfaces whose NICs steer flows, of a director's.
func (s *Steering) On(interfaces []string) []string {
	switch {
	case !s.Given():
		return nil
	case len(s.Interfaces) > 0:
		return s.Interfaces
	}
	return interfaces
}

func (s *Steering) setDefaults() {
	if s.Given() {
		s.Flows, s.Packets = cmp.Or(s.Flows, DefaultSteeredFlows), cmp.Or(s.Packets, DefaultSteeredPackets)
	}
}

// QueueRange is one or more receive queues. It is written as 8 or 8-15.
type QueueRange struct{ First, Last uint16 }

// List returns the queues.
func (r QueueRange) List() []uint32 {
	all := make([]uint32, 0, r.Last-r.First+1)
	for q := uint32(r.First); q <= uint32(r.Last); q++ {
		all = append(all, q)
	}
	return all
}

// String returns "8" or "8-15".
func (r QueueRange) String() string { return PortRange(r).String() }

// MarshalText writes what String returns.
func (r QueueRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what String returns.
func (r *QueueRange) UnmarshalText(text []byte) error {
	first, last, isRange := strings.Cut(string(text), "-")
	if !isRange {
		last = first
	}
	f, err := strconv.ParseUint(first, 10, 16)
	l, err2 := strconv.ParseUint(last, 10, 16)
	switch {
	case err != nil || err2 != nil || l < f:
		return fmt.Errorf("%q is neither a receive queue (8) nor a range of them (8-15)", text)
	case f == 0:
		return fmt.Errorf("%q has queue 0, which is for packets without a rule", text)
	case l > MaxSteeredQueue:
		return fmt.Errorf("%q goes beyond queue %d", text, MaxSteeredQueue)
	}
	*r = QueueRange{uint16(f), uint16(l)}
	return nil
}

// steering checks which NICs steer flows.
func (v *validation) steering() {
	d := &v.config.Director
	s := &d.Steering
	if !s.Given() {
		if len(s.Interfaces) > 0 || s.Flows != 0 || s.Packets != 0 {
			v.errs.add("director.steering", "needs queues: the receive queues that are for steered flows alone")
		}
		return
	}
	v.interfaces("director.steering.interfaces", s.Interfaces)
	for i, name := range s.Interfaces {
		if !slices.Contains(d.Interfaces, name) {
			v.errs.addWithOther(fmt.Sprintf("director.steering.interfaces[%d]", i), "director.interfaces",
				"%q is none of director.interfaces", name)
		}
	}
	if on := s.On(d.Interfaces); len(on) > MaxSteeredInterfaces {
		v.errs.add("director.steering.interfaces", "%d interfaces are more than %d", len(on), MaxSteeredInterfaces)
	}
	v.limit("director.steering.flows", uint64(s.Flows), 1, MaxSteeredFlows)
	v.limit("director.steering.packets-per-second", uint64(s.Packets), 1, MaxSteeredPackets)
}

// SteeringStatus is which flows NICs steer.
type SteeringStatus struct {
	Flows   int    `json:"flows"`   // that have a rule on some interface, or get one
	Most    int    `json:"most"`    // flows for which every NIC has room
	Packets uint64 `json:"packets"` // that have gone to their backends by their rules, since the maps were made
	// Elsewhere are flows that have rules, and whose packets come by other queues.
	Elsewhere  int                `json:"elsewhere"`
	Interfaces []SteeredInterface `json:"interfaces"`
	Problem    string             `json:"problem,omitempty"` // why no flow is steered anywhere
}

// SteeredInterface is the state of one interface's NIC.
type SteeredInterface struct {
	Name     string         `json:"name"`
	Rules    int            `json:"rules"`    // of this director, that the NIC says it has
	Room     int            `json:"room"`     // rules that fit, of all users
	Others   int            `json:"others"`   // other users' rules
	Inserted uint64         `json:"inserted"` // rules, since the process started
	Deleted  uint64         `json:"deleted"`
	Refused  uint64         `json:"refused"` // rules that the NIC has not taken
	Lost     uint64         `json:"lost"`    // rules that the NIC no longer had when they were read
	Queues   []SteeredQueue `json:"queues"`
	Works    bool           `json:"works"`             // it steers flows, if not all that it should
	Leaves   bool           `json:"leaves,omitempty"`  // its rules are to go: it, or its queues, are no longer configured
	Problem  string         `json:"problem,omitempty"` // why it steers none, or not all that it should
}

// SteeredQueue is a receive queue that has a service's flows.
type SteeredQueue struct {
	Queue   uint32    `json:"queue"`
	Service string    `json:"service"` // its name
	ID      ServiceID `json:"-"`
	Flows   int       `json:"flows"`
}
