package model

import (
	"net/netip"
	"time"
)

// StartSteps is how many steps a backend takes to its whole share. Backends hardly feel smaller
// steps, and each step is a generation.
const StartSteps = 8

// Step is how far a backend has come on its way to its whole share.
type Step struct {
	Backend netip.AddrPort `json:"backend"`
	Number  uint8          `json:"number"` // its share is so many of StartSteps parts: 1 to StartSteps-1
	Since   time.Time      `json:"since"`  // UTC
}

// Found is what is known about a backend's health, and how long it has been so. The zero value is
// nothing.
type Found struct {
	State HealthState
	For   time.Duration
}

// StartsSlowly reports whether the service's backends get their shares step by step.
func (s *Service) StartsSlowly() bool { return s.Checked() && s.Health.SlowStart > 0 }

// LeastHealthy returns how many backends must be left for the VIP to be announced.
func (s *Service) LeastHealthy() uint32 {
	if s.MinHealthy == nil {
		return 1
	}
	return *s.MinHealthy
}

// TooFew reports whether so few backends are up that the checks are likelier to be wrong
// than so many backends.
func (s *Service) TooFew(up, down int) bool {
	return s.Checked() && s.Health.Panic != nil && 100*up < int(*s.Health.Panic)*(up+down)
}
