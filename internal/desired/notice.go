package desired

import (
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// learned is when this director learned of a service's newest generation.
type learned struct {
	number uint64
	at     time.Time
}

// asOf returns a log as it is at a time: its newest generations may place no connections yet. The
// lock is held.
func (k *Keeper) asOf(id model.ServiceID, log model.Log, now time.Time) model.Log {
	if len(log.Generations) == 0 {
		return log
	}
	if newest := log.Generations[0].Number; k.learned[id].number != newest {
		k.learned[id] = learned{newest, now}
	}
	coming, next := history.Coming(log, k.learned[id].at, now)
	log.Coming = coming
	if coming > 0 && (k.placing.IsZero() || next.Before(k.placing)) {
		k.placing = next
	}
	return log
}

// dueToPlace returns when a generation that is coming first places connections, or the
// zero time.
func (k *Keeper) dueToPlace() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.placing
}

// place lets generations place connections when their time has come.
func (k *Keeper) place() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.placing.IsZero() || time.Now().Before(k.placing) {
		return nil
	}
	return k.apply()
}
