package desired

import (
	"maps"

	"weir.io/weir/internal/history"
)

// settle counts what a change has taken out of the logs, warns if it was still needed, and logs
// which backends start slowly or are strained. It is called with the lock held.
func (k *Keeper) settle(l *ledger) {
	for _, d := range l.left {
		k.left[d.Cause]++
		if d.Cause == history.Overdue {
			k.log.Warn("a generation that agents report connections of, or are silent about, or that directors see some of, has left the log at max-retention",
				"service", d.service, "generation", d.Number, "since", d.Since)
		}
	}
	for _, s := range l.reshared {
		if !sameSteps(s.before, s.after) {
			k.log.Info("backends that start slowly have other shares", "service", s.service, "steps", s.starting())
		}
		if !sameStrain(s.before, s.after) {
			k.log.Warn("backends that are strained have other shares", "service", s.service, "strained", s.strained())
		}
	}
}

// Left returns how many generations have left logs in changes that this keeper made, by the cause.
// In a group one director counts each.
func (k *Keeper) Left() map[history.Cause]uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.left)
}

// Revision returns the revision of the group's state that is followed, or 0.
func (k *Keeper) Revision() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shared.Revision
}
