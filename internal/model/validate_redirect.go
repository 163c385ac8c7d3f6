package model

import (
	"fmt"
	"net/netip"
	"slices"
)

// redirect checks that clients' connections can be handed over: that the option has room for the
// backends, and that their hosts can be told apart.
func (v *validation) redirect(i int) {
	s := &v.config.Services[i]
	if s.Mode != Redirect {
		if s.Fallback != nil {
			v.errs.addWithOther(servicePath(i, "fallback"), servicePath(i, "mode"), "is only for mode redirect, and this service is %s", s.Mode)
		}
		if len(s.RedirectTo) > 0 {
			v.errs.addWithOther(servicePath(i, "redirect-to"), servicePath(i, "mode"), "is only for mode redirect, and this service is %s", s.Mode)
		}
		if s.RedirectUnprobed {
			v.errs.addWithOther(servicePath(i, "redirect-unprobed"), servicePath(i, "mode"), "is only for mode redirect, and this service is %s", s.Mode)
		}
		v.askRedirect(i)
		return
	}
	if s.AskRedirect {
		v.errs.addWithOther(servicePath(i, "ask-redirect"), servicePath(i, "mode"), "is for mode nat, and this service is %s: it hands connections over by itself", s.Mode)
	}
	if s.Protocol == UDP {
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
	for j, p := range s.RedirectTo {
		if problem := prefixProblem(p); problem != "" {
			v.errs.add(fmt.Sprintf("%s[%d]", servicePath(i, "redirect-to"), j), "%s %s", prefixText(p), problem)
		}
	}
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
	case s.Protocol == UDP:
		v.errs.addWithOther(servicePath(i, "ask-redirect"), servicePath(i, "protocol"), "is for protocol tcp, whose SYNs have options")
	}
}

func (v *validation) redirectBackend(i, j int) {
	s := &v.config.Services[i]
	b := &s.Backends[j]
	switch {
	case !b.RedirectsIn(s) || !b.Address.IsValid() || !s.VIP.IsValid():
	case s.VIP.Is4() != b.Address.Is4():
		v.errs.add(backendPath(i, j, "address"), "%s is %s and VIP %s is %s: mode redirect cannot change the family",
			b.Address, family(b.Address), s.VIP, family(s.VIP))
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
