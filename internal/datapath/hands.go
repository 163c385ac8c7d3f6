package datapath

import (
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/upkeep"
)

// hands counts the entries of maps that another program had changed before a change of this process
// exchanged them, by the maps' names. No look would find them any more. Nil counts none.
type hands map[string]int

// exchange writes an entry in place of the former one, if one is known.
func exchange[K any, V comparable](m *ebpf.Map, name string, key K, want, former V, known bool, h hands) error {
	if h == nil {
		return m.Put(key, want)
	}
	byHand, err := contents.Exchange(m, key, want, former, known)
	if byHand {
		h[name]++
	}
	return err
}

// hasOnlyOwn reports whether the maps have no entries of an earlier process any more.
func (d *Datapath) hasOnlyOwn() bool { return d.old.empty() && d.refused.old == nil }

// beginChange is called before maps change. The last change has succeeded as a whole, or not.
func (d *Datapath) beginChange(whole bool) { d.exact = whole && d.hasOnlyOwn() }

// counting is where a change counts hands; nil: what it finds in maps may be of an earlier process, or of
// a change that has not succeeded as a whole.
func (d *Datapath) counting() hands {
	if !d.exact {
		return nil
	}
	if d.hands == nil {
		d.hands = hands{}
	}
	return d.hands
}

func (d *Datapath) countHands(name string, entries int) {
	if h := d.counting(); h != nil && entries > 0 {
		h[name] += entries
	}
}

// withHands adds what changes have exchanged since the last look to what a look has found.
func (d *Datapath) withHands(found []upkeep.Difference) []upkeep.Difference {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(d.hands)) {
		was := contents.Exchanged(name, d.hands[name])
		if !slices.ContainsFunc(found, func(f upkeep.Difference) bool { return f.What == was.What }) {
			found = append(found, was)
		}
	}
	d.hands = nil
	return found
}
