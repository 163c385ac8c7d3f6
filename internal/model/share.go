package model

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Passive says which signs of strain, reported by agents, take a part of a backend's share away,
// and how much.
type Passive struct {
	Refused   *uint32  `json:"refused,omitempty"`   // connections a second that are too many; 0: they do not count; agents see none of UDP
	Overflows *uint32  `json:"overflows,omitempty"` // the same for connections, or datagrams, for which the server's socket has no room
	Floor     uint8    `json:"floor,omitempty"`     // percent of its share that a backend keeps at least
	Pace      Duration `json:"pace,omitzero"`       // from one step to the next
}

// The defaults of passive's keys.
const (
	DefaultPassiveRate  = 1
	DefaultPassiveFloor = 50
	DefaultPassivePace  = Duration(30 * time.Second)
)

func (p *Passive) withDefaults() *Passive {
	if p == nil {
		return nil
	}
	out := *p
	for _, rate := range []**uint32{&out.Refused, &out.Overflows} {
		if *rate == nil {
			least := uint32(DefaultPassiveRate)
			*rate = &least
		}
	}
	out.Floor, out.Pace = cmp.Or(out.Floor, DefaultPassiveFloor), cmp.Or(out.Pace, DefaultPassivePace)
	return &out
}

// Strains reports whether a signal is a reason to take a part of a share away.
func (p *Passive) Strains(s Signal) bool { return p.exceeds(s, 1) }

// Calms reports whether a signal lets the share come back: it is less than half of what is too
// much.
func (p *Passive) Calms(s Signal) bool { return !p.exceeds(s, 0.5) }

func (p *Passive) exceeds(s Signal, part float64) bool {
	over := func(rate float64, most *uint32) bool { return most != nil && *most > 0 && rate >= part*float64(*most) }
	return over(s.Refused, p.Refused) || over(s.Overflows, p.Overflows)
}

// LeastParts returns how many of ShareParts parts of its share a strained backend keeps at least.
func (p *Passive) LeastParts() uint8 {
	return uint8(max(1, (int(p.Floor)*ShareParts+99)/100))
}

// ShareParts is how many parts strain divides a share into.
const ShareParts = 8

// Strain is what a backend keeps of its share because agents report signs of strain.
type Strain struct {
	Backend netip.AddrPort `json:"backend"`
	Parts   uint8          `json:"parts"` // of ShareParts: 1 to ShareParts-1
	Since   time.Time      `json:"since"` // UTC
}

// Heard is what an agent has last reported about a service's backend. The zero value is nothing.
type Heard struct {
	Signal
	Taken time.Time
}

// Relieves reports whether signs of strain change the shares of the service's backends.
func (s *Service) Relieves() bool { return s.Checked() && s.Health.Passive != nil }

// SharesChange reports whether the shares of the service's backends change with what probes find
// and agents report.
func (s *Service) SharesChange() bool { return s.StartsSlowly() || s.Relieves() }

// WholeShare is a backend's share by its weight alone, in the parts of Log.Share.
const WholeShare = StartSteps * ShareParts

// Share returns which part of its share a backend has: it may start slowly, and be strained.
func (l *Log) Share(b netip.AddrPort) uint32 {
	share := uint32(WholeShare)
	if i, is := slices.BinarySearchFunc(l.Steps, b, func(s Step, b netip.AddrPort) int { return s.Backend.Compare(b) }); is {
		share = share / StartSteps * uint32(l.Steps[i].Number)
	}
	if i, is := slices.BinarySearchFunc(l.Strained, b, func(s Strain, b netip.AddrPort) int { return s.Backend.Compare(b) }); is {
		share = share / ShareParts * uint32(l.Strained[i].Parts)
	}
	return share
}

// StartSteps is how many steps a backend takes to its whole share. Backends hardly feel smaller
// steps, and each step is a generation.
const StartSteps = 8

// Step is how far a backend has come on its way to its whole share.
type Step struct {
	Backend netip.AddrPort `json:"backend"`
	Number  uint8          `json:"number"` // its share is so many of StartSteps parts: 1 to StartSteps-1
	Since   time.Time      `json:"since"`  // UTC
}

// StartsSlowly reports whether the service's backends get their shares step by step.
func (s *Service) StartsSlowly() bool { return s.Checked() && s.Health.SlowStart > 0 }
