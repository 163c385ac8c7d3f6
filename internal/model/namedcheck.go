package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// NamedCheck is a health check that services have by its name.
type NamedCheck struct {
	Name string `json:"name"`
	HealthCheck
}

// resolveChecks gives services the checks that they name. A service's own keys say how its backends are
// counted; what they are asked is the named check's. What cannot be resolved stays as it is, and validation
// says why.
func (c *Config) resolveChecks() {
	if len(c.Checks) == 0 {
		return
	}
	named := make(map[string]*HealthCheck, len(c.Checks))
	for i := range c.Checks {
		named[c.Checks[i].Name] = &c.Checks[i].HealthCheck
	}
	for i := range c.Services {
		s := &c.Services[i]
		if s.Health == nil || s.Health.Check == "" {
			continue
		}
		if of := named[s.Health.Check]; of != nil && of.Check == "" && len(s.Health.asks()) == 0 {
			if c.NamedBy == nil {
				c.NamedBy = map[int]string{}
			}
			c.NamedBy[i] = s.Health.Check
			s.Health = of.with(s.Health)
		}
	}
}

// with returns the check with the keys of one that names it.
func (h HealthCheck) with(own *HealthCheck) *HealthCheck {
	h.Interval, h.Jitter, h.Timeout = cmp.Or(own.Interval, h.Interval), cmp.Or(own.Jitter, h.Jitter), cmp.Or(own.Timeout, h.Timeout)
	h.Rise, h.Fall, h.Panic = cmp.Or(own.Rise, h.Rise), cmp.Or(own.Fall, h.Fall), cmp.Or(own.Panic, h.Panic)
	h.SlowStart, h.StartDelay, h.Passive = cmp.Or(own.SlowStart, h.SlowStart), cmp.Or(own.StartDelay, h.StartDelay), cmp.Or(own.Passive, h.Passive)
	h.Port, h.To = cmp.Or(own.Port, h.Port), cmp.Or(own.To, h.To)
	return &h
}

// asks returns the keys that a check has of those that say what backends are asked.
func (h *HealthCheck) asks() (keys []string) {
	for key, given := range map[string]bool{"kind": h.Kind != "", "http": h.HTTP != nil, "tls": h.TLS != nil, "grpc": h.GRPC != nil, "udp": h.UDP != nil, "dns": h.DNS != nil, "smtp": h.SMTP != nil, "exec": len(h.Exec) > 0} {
		if given {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// namedChecks checks them by themselves, and remembers those that are wrong: services that have them say it not
// again.
func (v *validation) namedChecks() {
	names := make(map[string]int, len(v.config.Checks))
	v.wrongChecks = map[string]bool{}
	for k := range v.config.Checks {
		n := &v.config.Checks[k]
		before := len(v.errs)
		at := fmt.Sprintf("checks[%d]", k)
		if problem := nameProblem(n.Name); problem != "" {
			v.errs.add(at+".name", "%s", problem)
		} else if first, dup := names[n.Name]; dup {
			v.errs.addWithOther(at+".name", fmt.Sprintf("checks[%d].name", first), "%q is the name of another check", n.Name)
		} else {
			names[n.Name] = k
		}
		if n.Check != "" {
			v.errs.add(at+".check", "is for services: a check of this list is its own")
		}
		h := healthValidation{validation: v, check: n.HealthCheck.withDefaults(), named: at}
		h.itself()
		if len(v.errs) > before && n.Name != "" {
			v.wrongChecks[n.Name] = true
		}
	}
}

// unresolved says why a service does not have the check that it names.
func (h healthValidation) unresolved() {
	of := slices.IndexFunc(h.config.Checks, func(n NamedCheck) bool { return n.Name == h.check.Check })
	if of < 0 {
		known := make(map[string]bool, len(h.config.Checks))
		for k := range h.config.Checks {
			known[h.config.Checks[k].Name] = true
		}
		h.errs.addWithOther(h.path("check"), "checks", "there is no check %q%s", h.check.Check, knownChecks(known))
		return
	}
	for _, key := range h.check.asks() {
		h.errs.addWithOther(h.path(key), fmt.Sprintf("checks[%d]", of), "is what check %q says: change it there, or leave check out", h.check.Check)
	}
}

func knownChecks(known map[string]bool) string {
	if len(known) == 0 {
		return ": checks has none here, and those of a director's file are for the services of that file"
	}
	names := slices.Sorted(maps.Keys(known))
	return fmt.Sprintf(" (there are %q)", names[:min(len(names), 10)])
}

// warnOfChecks names those that no service has.
func (c *Config) warnOfChecks(errs *FieldErrors) {
	if len(c.Checks) == 0 {
		return
	}
	used := map[string]bool{}
	for _, name := range c.NamedBy {
		used[name] = true
	}
	for k := range c.Checks {
		if !used[c.Checks[k].Name] {
			errs.add(fmt.Sprintf("checks[%d]", k), "no service has check %q (health: {check: %s})", c.Checks[k].Name, c.Checks[k].Name)
		}
	}
}
