package model

import "net/netip"

// View is what a director's probes have found of a service's backends. Those of which it
// knows nothing yet are not in it.
type View struct {
	ServiceID
	Up   []netip.AddrPort `json:"up,omitempty"`
	Down []netip.AddrPort `json:"down,omitempty"`
}
