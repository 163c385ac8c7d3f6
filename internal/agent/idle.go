package agent

import (
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// Idle is why an agent does nothing for the services that it is given, or for some of them.
type Idle struct {
	// NoBackend says that no address of this host is a backend's. It is not said if services have
	// pods: hosts of pods have no backend whenever they have no pod.
	NoBackend bool
	// NoDirector are addresses of backends here to which no host may send through tunnels:
	// directors has no address of their family.
	NoDirector []netip.Addr
}

// Idle says whether what the file asks for needs this host at all.
func (a *Agent) Idle() Idle {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.idle
}

// noteIdle notes why the agent has nothing to do, if that is so.
func (a *Agent) noteIdle(p plan, addresses map[netip.Addr]bool) {
	a.idle = Idle{}
	if len(p.services) > 0 {
		a.idle.NoDirector = withoutDirector(p.ends, a.config.Directors)
		return
	}
	if len(p.redirects) > 0 {
		return
	}
	if names := natServices(a.config, addresses); len(names) > 0 {
		a.options.Log.Info("the backends of this host are all of mode nat, which needs no agent: there is nothing to unwrap", "services", names)
		return
	}
	a.idle.NoBackend = !hasPods(a.config.Services)
}

// withoutDirector returns the ends of tunnels whose family no director has.
func withoutDirector(ends []netip.Addr, directors []netip.Prefix) (without []netip.Addr) {
	for _, end := range ends {
		if !slices.ContainsFunc(directors, func(d netip.Prefix) bool { return d.Addr().Is4() == end.Is4() }) {
			without = append(without, end)
		}
	}
	return without
}

// hasPods reports whether any backend is a pod.
func hasPods(services []model.Service) bool {
	for i := range services {
		for _, b := range services[i].Backends {
			if b.Host.IsValid() {
				return true
			}
		}
	}
	return false
}

// natServices are the services that have a backend in mode nat at one of these addresses.
func natServices(config model.Config, addresses map[netip.Addr]bool) (names []string) {
	for _, s := range config.Services {
		for _, b := range s.Backends {
			if !unwrapped(b.ModeIn(s)) && addresses[hostOf(&b)] {
				names = append(names, s.Name)
				break
			}
		}
	}
	return names
}
