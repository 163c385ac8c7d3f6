package model

import "net/netip"

// View is what a director's probes have found about a service's backends. Backends about which it
// knows nothing yet are not in it.
type View struct {
	ServiceID
	Up   []netip.AddrPort `json:"up,omitempty"`
	Down []netip.AddrPort `json:"down,omitempty"`
}
