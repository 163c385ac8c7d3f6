package model

import (
	"net/netip"
	"slices"
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

// redirect checks that clients' connections can be handed over: that the option has room for the
// backends, and that their hosts can be told apart.
func (v *validation) redirect(i int) {
	s := &v.config.Services[i]
	if s.Mode != Redirect {
		for _, key := range []struct {
			name  string
			given bool
		}{{"fallback", s.Fallback != nil}, {"redirect-to", len(s.RedirectTo) > 0}, {"redirect-unprobed", s.RedirectUnprobed}} {
			if key.given {
				v.errs.addWithOther(servicePath(i, key.name), servicePath(i, "mode"), "is only for mode redirect, and this service is %s", s.Mode)
			}
		}
		v.askRedirect(i)
		return
	}
	if s.AskRedirect {
		v.errs.addWithOther(servicePath(i, "ask-redirect"), servicePath(i, "mode"), "is for mode nat, and this service is %s: it hands connections over by itself", s.Mode)
	}
	if s.Protocol.Datagrams() {
		v.errs.addWithOther(servicePath(i, "mode"), servicePath(i, "protocol"), "redirect is for protocol tcp, whose SYNs have options")
	}
	if !s.Port.Single() && s.Port.First <= s.Port.Last {
		v.errs.addWithOther(servicePath(i, "mode"), servicePath(i, "port"), "redirect is for one port, not for %s", s.Port)
	}
	if s.Segment != (Segment{}) {
		v.errs.addWithOther(servicePath(i, "mode"), servicePath(i, "segment"), "redirect is not available in segments yet, and this service is in %s", s.Segment)
	}
	if s.Fallback != nil {
		if problem := packetModeProblem(*s.Fallback); problem != "" {
			v.errs.add(servicePath(i, "fallback"), "%s", problem)
		}
	}
	v.prefixes(servicePath(i, "redirect-to"), s.RedirectTo)
	for j := range s.Backends {
		v.redirectBackend(i, j)
	}
}

// askRedirect checks that a service has flows that other directors may take over.
func (v *validation) askRedirect(i int) {
	s := &v.config.Services[i]
	switch {
	case !s.AskRedirect:
	case s.Mode != NAT:
		v.errs.addWithOther(servicePath(i, "ask-redirect"), servicePath(i, "mode"), "is only for mode nat, and this service is %s", s.Mode)
	case !s.SNAT:
		v.errs.add(servicePath(i, "ask-redirect"), "needs snat: what answers in a backend's place has to answer to this director")
	case s.Protocol.Datagrams():
		v.errs.addWithOther(servicePath(i, "ask-redirect"), servicePath(i, "protocol"), "is for protocol tcp, whose SYNs have options")
	}
}

func (v *validation) redirectBackend(i, j int) {
	s := &v.config.Services[i]
	b := &s.Backends[j]
	switch {
	case !b.RedirectsIn(s) || !b.Address.IsValid() || !s.VIP.IsValid():
	case v.otherFamily(i, j, "mode redirect"):
	case len(s.RedirectTo) > 0 && !slices.ContainsFunc(s.RedirectTo, func(p netip.Prefix) bool { return p.IsValid() && p.Contains(b.Address) }):
		v.errs.addWithOther(backendPath(i, j, "address"), servicePath(i, "redirect-to"),
			"%s is in no prefix of redirect-to, so clients' hosts would refuse it", b.Address)
	}
}

// packetModeProblem says why packets cannot use a mode, or nothing.
func packetModeProblem(m Mode) string {
	switch m {
	case L2DSR, IPIP, GUE, NAT:
		return ""
	case Redirect:
		return "redirect is a service's mode, and what is not redirected needs another one (l2dsr, ipip, gue or nat)"
	}
	return m.String() + " is not a mode (l2dsr, ipip, gue or nat)"
}
