package agent

import (
	"fmt"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/upkeep"
)

// partTables is what the programs look things up in: services, their peers and pods, and what is
// redirected, as planned.
const partTables = "tables"

// lookAtTables compares what the maps have with what they must have.
func (a *Agent) lookAtTables() ([]upkeep.Difference, error) {
	if !a.given {
		return nil, nil // it owns nothing yet
	}
	if !a.planned || a.problem != nil {
		return nil, fmt.Errorf("%w: what the file asks for does not run as a whole", upkeep.ErrUnknown)
	}
	return a.comparison.Look(a.compared, func(name string) error { return contents.Mend(a.compared(), name) })
}

// compared are the maps, in the order in which they are written. Services and namespaces are
// arrays: further elements there belong to no service.
func (a *Agent) compared() []contents.Map {
	t, m := &a.tables, &a.objects.bpfMaps
	podsHere := map[uint32]uint32{0: 0}
	if len(t.podNames) > 0 {
		podsHere[0] = 1
	}
	list := []contents.Map{
		contents.Within("pods_here", m.PodsHere, podsHere),
		contents.Whole("pod_names", m.PodNames, t.podNames),
		contents.Whole("pod_ends", m.PodEnds, t.podEnds),
		contents.Within("namespaces", m.Namespaces, t.namespaces),
		contents.Within("services", m.Services, t.services),
		contents.Whole("peers", m.Peers, a.former.with(t.peers)),
		contents.Whole("sources", m.Sources, t.sources),
		contents.Whole("endpoints", m.Endpoints, t.endpoints),
		contents.Whole("ranges", m.Ranges, t.ranges),
		contents.Whole("tunnel_ends", m.TunnelEnds, t.ends),
	}
	if a.redirector != nil {
		list = append(list, a.redirector.compared()...)
	}
	return list
}

// compared are the maps of redirection.
func (r *redirector) compared() []contents.Map {
	return []contents.Map{
		contents.Whole("redirect_ports", r.RedirectPorts, r.ports),
		contents.Within("redirect_services", r.RedirectServices, r.tables.services),
		contents.Whole("redirect_prefixes", r.RedirectPrefixes, r.tables.prefixes),
		contents.Whole("redirect_names", r.RedirectNames, r.tables.names),
		contents.Whole("redirect_here", r.RedirectHere, r.tables.here),
		contents.Whole("redirect_vips", r.RedirectVips, r.tables.vips),
		contents.Whole("guard_sources", r.GuardSources, r.guards.sources()),
		contents.Whole("guards", r.Guards, r.guards.at),
	}
}
