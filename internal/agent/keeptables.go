package agent

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/upkeep"
)

// partTables is what the programs look at: services, their peers and pods, and what is redirected, by
// the plan.
const partTables = "tables"

// comparedInSecond is how many entries are compared in a second: some hundredth of a CPU. Where there
// are more, as with very many pods, all are compared less often.
const comparedInSecond = 4096

// compared is one of the maps whose contents are compared.
type compared struct {
	name    string
	kept    *ebpf.Map
	entries int
	look    func() (amiss, more int, err error)
	mend    func() error
}

// lookAtTables compares what the maps have with what they must have.
func (a *Agent) lookAtTables() (found []upkeep.Difference, err error) {
	if !a.planned || a.problem != nil || time.Now().Before(a.comparedNext) {
		return nil, nil
	}
	entries := 0
	for _, c := range a.compared() {
		entries += c.entries
		amiss, more, err := c.look()
		if err != nil {
			return nil, err
		}
		if amiss+more > 0 {
			found = append(found, upkeep.Difference{What: "map " + c.name, Found: entriesText(amiss, more), Repair: c.mend})
		}
	}
	a.comparedNext = time.Time{}
	if pause := time.Duration(entries/comparedInSecond) * time.Second; len(found) == 0 {
		a.comparedNext = time.Now().Add(pause)
	}
	return found, nil
}

func entriesText(amiss, more int) string {
	var parts []string
	if amiss > 0 {
		parts = append(parts, fmt.Sprintf("%d entries are gone or are others", amiss))
	}
	if more > 0 {
		parts = append(parts, fmt.Sprintf("%d entries are there that nobody has made", more))
	}
	return strings.Join(parts, ", ")
}

// compared are the maps, in the order in which they are written. Services and namespaces are arrays:
// what is more there is nobody's.
func (a *Agent) compared() []compared {
	t, m := &a.tables, &a.objects.bpfMaps
	podsHere := map[uint32]uint32{0: 0}
	if len(t.podNames) > 0 {
		podsHere[0] = 1
	}
	list := []compared{
		wanting("pods_here", m.PodsHere, podsHere),
		whole("pod_names", m.PodNames, t.podNames),
		whole("pod_ends", m.PodEnds, t.podEnds),
		wanting("namespaces", m.Namespaces, t.namespaces),
		wanting("services", m.Services, t.services),
		whole("peers", m.Peers, a.former.with(t.peers)),
		whole("sources", m.Sources, t.sources),
		whole("endpoints", m.Endpoints, t.endpoints),
		whole("ranges", m.Ranges, t.ranges),
		whole("tunnel_ends", m.TunnelEnds, t.ends),
	}
	if a.redirector != nil {
		list = append(list, a.redirector.compared()...)
	}
	return list
}

// compared are the maps of redirection.
func (r *redirector) compared() []compared {
	return []compared{
		whole("redirect_ports", r.RedirectPorts, r.ports),
		wanting("redirect_services", r.RedirectServices, r.tables.services),
		whole("redirect_prefixes", r.RedirectPrefixes, r.tables.prefixes),
		whole("redirect_names", r.RedirectNames, r.tables.names),
		whole("redirect_here", r.RedirectHere, r.tables.here),
		whole("redirect_vips", r.RedirectVips, r.tables.vips),
		whole("guard_sources", r.GuardSources, r.guards.sources()),
		whole("guards", r.Guards, r.guards.at),
	}
}

// wanting compares a map that may have more.
func wanting[K, V comparable](name string, m *ebpf.Map, want map[K]V) compared {
	return compared{name, m, len(want), func() (amiss, more int, err error) {
		for key, value := range want {
			var have V
			switch err := m.Lookup(key, &have); {
			case errors.Is(err, ebpf.ErrKeyNotExist):
				amiss++
			case err != nil:
				return 0, 0, fmt.Errorf("read map %s: %w", m, err)
			case have != value:
				amiss++
			}
		}
		return amiss, 0, nil
	}, func() error { return putAll(m, want) }}
}

// whole compares a map that must have this and no more.
func whole[K, V comparable](name string, m *ebpf.Map, want map[K]V) compared {
	return compared{name, m, len(want), func() (amiss, more int, err error) {
		have, err := readAllOf[K, V](m)
		if err != nil {
			return 0, 0, err
		}
		for key, value := range want {
			if is, there := have[key]; !there || is != value {
				amiss++
			}
		}
		for key := range have {
			if _, wanted := want[key]; !wanted {
				more++
			}
		}
		return amiss, more, nil
	}, func() error { return errors.Join(putAll(m, want), removeOthers(m, want)) }}
}
