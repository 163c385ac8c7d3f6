package datapath

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/upkeep"
)

// contentDifferences compares the maps by which packets find services, backends of replies and
// sources with what they must have. Rings and backends are memory that this process shares with the
// programs; flows are the programs' own.
//
// Reading half a million entries takes seconds, in which no change may have to wait. So they are
// compared with a copy of what they must have. A change may have been made meanwhile: maps that differ
// are compared again, while none is made.
func (d *Datapath) contentDifferences() ([]upkeep.Difference, error) {
	repair := func(name string) error {
		return d.locked(func() error { return contents.Mend(d.keptMaps(itself), name) })()
	}
	if _, err := d.whileItRuns(d.unsettled)(); err != nil {
		return nil, err
	}
	copied := mapCopies{}
	defer copied.close()
	found, err := d.comparison.Look(func() []contents.Map { return d.copiedMaps(&copied) }, repair)
	if errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, upkeep.ErrUnknown // changes have taken away too much meanwhile: the next look tries again
	}
	if err = errors.Join(err, copied.err); err != nil || len(found) == 0 {
		return nil, err
	}
	return d.whileItRuns(func() ([]upkeep.Difference, error) {
		if _, err := d.unsettled(); err != nil {
			return nil, err
		}
		return d.comparison.Look(func() []contents.Map {
			return slices.DeleteFunc(d.keptMaps(itself), func(m contents.Map) bool {
				return !slices.ContainsFunc(found, func(f upkeep.Difference) bool { return f.What == m.What() })
			})
		}, repair)
	})()
}

// unsettled says why the maps cannot be compared yet: they may still have entries that this
// process has not put there, at first those of an earlier process.
func (d *Datapath) unsettled() ([]upkeep.Difference, error) {
	if d.whole && d.old.empty() && d.refused.old == nil {
		return nil, nil
	}
	return nil, fmt.Errorf("%w: the last change has not succeeded as a whole, or entries of an earlier process are still there", upkeep.ErrUnknown)
}

// copiedMaps copies what is to be compared; nil: nothing is. A map may be closed while it is read, so
// it is opened once more.
func (d *Datapath) copiedMaps(copied *mapCopies) (compared []contents.Map) {
	_, _ = d.whileItRuns(func() ([]upkeep.Difference, error) {
		if _, copied.err = d.unsettled(); copied.err == nil {
			compared = d.keptMaps(copied.open)
		}
		return nil, nil
	})()
	if copied.err != nil {
		return nil
	}
	return compared
}

// mapCopies are maps that were opened once more.
type mapCopies struct {
	maps []*ebpf.Map
	err  error
}

func (c *mapCopies) open(m *ebpf.Map) *ebpf.Map {
	again, err := m.Clone()
	c.err = errors.Join(c.err, err)
	if err == nil {
		c.maps = append(c.maps, again)
	}
	return again
}

func (c *mapCopies) close() {
	for _, m := range c.maps {
		m.Close()
	}
}

func itself(m *ebpf.Map) *ebpf.Map { return m }

// keptMaps are the maps with what must be in them, which is copied.
func (d *Datapath) keptMaps(open func(*ebpf.Map) *ebpf.Map) []contents.Map {
	k := d.kernel
	return []contents.Map{
		bothFamilies("services", open(k.Services4), open(k.Services6), d.have.services, endpoint.v4, endpoint.v6, endpoint.is4),
		bothFamilies("ranges", open(k.Ranges4), open(k.Ranges6), d.have.ranges, prefix.v4, prefix.v6, prefix.is4),
		bothFamilies("replies", open(k.Replies4), open(k.Replies6), d.have.replies, endpoint.v4, endpoint.v6, endpoint.is4),
		contents.Whole("ask_backends", open(k.AskBackends), maps.Clone(d.have.asked)),
		contents.Whole("backend_sources", open(k.BackendSources), d.refused.all()),
		contents.Whole("own_macs", open(k.OwnMacs), d.wrote.own),
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
