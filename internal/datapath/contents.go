package datapath

import (
	"github.com/cilium/ebpf"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/upkeep"
)

// contentDifferences compares the maps by which packets find services, backends of replies and
// sources with what they must have. Rings and backends are memory that this process shares with the
// programs; flows are the programs' own.
func (d *Datapath) contentDifferences() ([]upkeep.Difference, error) {
	if !d.whole || !d.old.empty() || d.refused.old != nil {
		return nil, nil // what an earlier process left may be there, too
	}
	return d.comparison.Look(d.keptMaps, func(name string) error {
		return d.locked(func() error { return contents.Mend(d.keptMaps(), name) })()
	})
}

func (d *Datapath) keptMaps() []contents.Map {
	k := d.kernel
	return []contents.Map{
		bothFamilies("services", k.Services4, k.Services6, d.have.services, endpoint.v4, endpoint.v6, endpoint.is4),
		bothFamilies("ranges", k.Ranges4, k.Ranges6, d.have.ranges, prefix.v4, prefix.v6, prefix.is4),
		bothFamilies("replies", k.Replies4, k.Replies6, d.have.replies, endpoint.v4, endpoint.v6, endpoint.is4),
		contents.Whole("ask_backends", k.AskBackends, d.have.asked),
		contents.Whole("backend_sources", k.BackendSources, d.refused.all()),
	}
}

// bothFamilies is what must be in the maps of IPv4 and of IPv6.
func bothFamilies[K, Four, Six comparable](name string, map4, map6 *ebpf.Map, want map[K]uint32, four func(K) Four, six func(K) Six, is4 func(K) bool) contents.Map {
	want4, want6 := map[Four]uint32{}, map[Six]uint32{}
	for key, index := range want {
		if is4(key) {
			want4[four(key)] = index
		} else {
			want6[six(key)] = index
		}
	}
	return contents.Both(contents.Whole(name, map4, want4), contents.Whole(name, map6, want6))
}
