package model

import (
	"net/netip"
	"time"
)

// DirectorRun is what a director of a group says about itself.
type DirectorRun struct {
	Address  netip.Addr `json:"address,omitzero"` // in the group; zero: it is in none
	Self     bool       `json:"self,omitempty"`   // it is the one that was asked
	Version  string     `json:"version"`
	Started  time.Time  `json:"started"`
	Revision uint64     `json:"revision"`          // of the sets that it follows
	Services int        `json:"services"`          // that it forwards, those of its own file too
	Refused  string     `json:"refused,omitempty"` // why what is wanted of it is not what it does
}
