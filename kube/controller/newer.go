package controller

import (
	"fmt"
	"maps"
	"slices"

	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/v1alpha1"
)

// A controller that was rolled back finds what the later version has written. Directors forward by
// that, or by what they have read before, and connections depend on the histories in it. So if this
// process cannot read some part of a group, it leaves the whole group as it is, until a later
// version leads again, or an operator removes the group's DirectorSets and with them the histories.

// newer is the reason of the event and of the condition that say that a group is left as it is.
const newer = v1alpha1.ReasonNewer

// why says what it means that a group is held.
func (g *compiledGroup) why() string {
	return fmt.Sprintf("%v. All of DirectorGroup %s stays as it is, and its directors forward on by that: run the newer version again, or remove its DirectorSets, which begins new histories and may break connections", g.newer, g.name)
}

// hold forgets what was read of groups that are to be left as they are, and tells users.
func (w *groupWriter) hold(groups map[string]*compiledGroup) {
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g := groups[name]
		if g.newer == nil {
			g.held = nil
			continue
		}
		g.byName, g.lost = map[string]*compiled{}, map[string]*compiled{}
		for _, o := range g.objects {
			o.services, o.changed, o.loses = map[string]*compiled{}, false, false
		}
		w.log.Error("a DirectorGroup is left as it is, because a newer version of weir has written what cannot be read of it", "group", name, "error", g.newer)
		w.report(name, newer, g.why())
	}
}

// heldBy returns the held group that has a Service; nil: none.
func (w *groupWriter) heldBy(name string) *compiledGroup {
	for _, g := range w.groups {
		if g.newer != nil && g.held[name] != nil {
			return g
		}
	}
	return nil
}

// without leaves out addresses that held groups forward: no other Service may have them.
func (w *groupWriter) without(shares []pool.Share) []pool.Share {
	held := map[string]bool{}
	for _, g := range w.groups {
		if g.newer == nil {
			continue
		}
		for _, s := range g.held {
			for _, vip := range s.VIPs {
				held[vip] = true
			}
		}
	}
	if len(held) == 0 {
		return shares
	}
	return slices.DeleteFunc(slices.Clone(shares), func(s pool.Share) bool { return held[s.Address.String()] })
}
