package model

import "net/netip"

// DefaultFallback is how packets of a service with mode redirect go that nobody redirects:
// its backends have agents anyway.
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

// RedirectedTo returns where on the backend such connections are.
func (b *Backend) RedirectedTo(s *Service) netip.AddrPort {
	return netip.AddrPortFrom(b.Address, b.portIn(s))
}
