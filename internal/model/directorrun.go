package model

import (
	"net/netip"
	"time"
)

// DirectorRun is what a director of a group says about itself.
type DirectorRun struct {
	Address  netip.Addr `json:"address,omitzero"` // in the group; zero: it is in none
	Self     bool       `json:"self,omitempty"`   // it is the director that was asked
	Version  string     `json:"version"`
	Started  time.Time  `json:"started"`
	Revision uint64     `json:"revision"`          // of the sets that it follows
	Services int        `json:"services"`          // that it forwards, including those of its own file
	Refused  string     `json:"refused,omitempty"` // why it does not do what the configuration asks for
}
