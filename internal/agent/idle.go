package agent

import (
	"net/netip"

	"weir.io/weir/internal/model"
)

// sayIdle says why the agent has nothing to do, if that is so.
func (a *Agent) sayIdle(p plan, addresses map[netip.Addr]bool) {
	if len(p.services)+len(p.redirects) > 0 {
		return
	}
	if names := natServices(a.config, addresses); len(names) > 0 {
		a.options.Log.Info("the backends of this host are all of mode nat, which needs no agent: there is nothing to unwrap", "services", names)
		return
	}
	a.options.Log.Warn("no address of this host is a backend's: there is nothing to do")
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
