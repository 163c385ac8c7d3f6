package model

import (
	"net/netip"
	"time"
)

// DefaultFallback is how packets of a service with mode redirect go that are not redirected: its
// backends have agents anyway.
const DefaultFallback = GUE

// PacketMode returns how packets of the service reach backends that are not redirected.
func (s *Service) PacketMode() Mode {
	switch {
	case s.Mode != Redirect:
		return s.Mode
	case s.Fallback != nil:
		return *s.Fallback
	}
	return DefaultFallback
}

// RedirectsIn reports whether connections of a service may be handed over to the backend:
// it has no mode of its own.
func (b *Backend) RedirectsIn(s *Service) bool { return s.Mode == Redirect && b.Mode == nil }

// RedirectedTo returns the backend's address and port for such connections.
func (b *Backend) RedirectedTo(s *Service) netip.AddrPort {
	return netip.AddrPortFrom(b.Address, b.portIn(s))
}

// AsksIn reports whether directors ask the backend, in the place of clients of the service,
// to hand connections over.
func (b *Backend) AsksIn(s *Service) bool {
	return s.AskRedirect && s.SNAT && b.ModeIn(*s) == NAT
}

// RedirectProbePriority is the priority of the sockets that receive the answers to probes of
// redirection (enum probe_priority).
const RedirectProbePriority = 0x57520000

// ProbesRedirects reports whether directors find out by probes which backends connections of the
// service can be handed over to.
func (s *Service) ProbesRedirects() bool { return s.Mode == Redirect && !s.RedirectUnprobed }

// RedirectCheck returns the check of whether connections of the service can be handed over to a
// backend: as often, and with as many results, as its health check.
func (s *Service) RedirectCheck() *HealthCheck {
	how := HealthCheck{Kind: CheckRedirect}
	if s.Checked() {
		h := s.Health
		how.Interval, how.Jitter, how.Timeout, how.Rise, how.Fall = h.Interval, h.Jitter, h.Timeout, h.Rise, h.Fall
	}
	return how.withDefaults()
}

// BackendRedirect is what a director's probes say of whether connections can be handed over
// to a backend.
type BackendRedirect struct {
	Able   bool      `json:"able"`
	Since  time.Time `json:"since"`            // UTC
	Probed time.Time `json:"probed,omitzero"`  // when the last probe ended, UTC
	Took   Duration  `json:"took,omitzero"`    // that probe
	Reason string    `json:"reason,omitempty"` // why it failed
	Detail string    `json:"detail,omitempty"` // the same for people
}

// fallbackCauses are the events of redirection (enum redirect_event) after which a connection uses
// its service's fallback, and the host that counts them. A client's host counts each such
// connection under one of them; it counts as "again" those that a backend's host counts.
var fallbackCauses = map[string]string{
	"again": "client", "no_room": "client", "has_data": "client", "forbidden": "client", "malformed": "client",
	"ambiguous": "client", "may_clash": "client", "add_failed": "client", "no_place": "client", "not_taken": "client",
	"quota":    "client",
	"misnamed": "backend", "unechoed": "backend", "echo_failed": "backend",
}

// FallbackHost returns which host counts connections that fall back by an event of redirection,
// "client" or "backend"; empty: none falls back by it.
func FallbackHost(event string) string { return fallbackCauses[event] }
