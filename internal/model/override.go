package model

import (
	"net/netip"
	"time"
)

// Override is a state that an operator has given to a backend of a director's own file, outside the
// file.
type Override struct {
	State BackendState `json:"state"`
	By    string       `json:"by" doc:"who: the user of a local process, or the name of a client"`
	At    time.Time    `json:"at"`
}

// BackendOverride is an override with its backend. It ends when the file gives the backend another
// address or a state other than active, or no longer has it.
type BackendOverride struct {
	Service  string     `json:"service"`
	Backend  string     `json:"backend"`
	Address  netip.Addr `json:"address"`
	Override `json:",inline"`
}

// Of reports whether it is the override of a backend of a service.
func (o *BackendOverride) Of(s *Service, b *Backend) bool {
	return o.Service == s.Name && o.Backend == b.Name && o.Address == b.Address
}
