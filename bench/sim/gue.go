package sim

import (
	"math/rand/v2"

	"weir.io/weir/internal/maglev"
)

// The constants of bpf/director/pick/p2c.h and bpf/abi/load_types.h.
const (
	ownerParts     = 8
	backupParts    = 9
	loadConnection = 16
	loadPeriod     = float64(1<<35) / 1e9 // seconds
	loadMost       = 1 << 30
)

// inGUE is policy p2c as weir has it in mode gue: the two servers are the owner and the backup of a
// slot, and a director knows what it has placed itself, a number that is halved every period.
type inGUE struct {
	blind
	random  *rand.Rand
	weights []float64
	owners  []uint32
	backups []uint32
	period  func() uint32
	loads   []load // by director and server
}

// load is what a director has placed on a server.
type load struct {
	opened uint32 // in units
	period uint32
}

func newInGUE(r *cluster) policy {
	second := r.config.Second
	if second == 0 {
		second = 1
	}
	owners, backups := maglev.RingAndBackups(maglev.DefaultSize(r.config.Servers), members(r.config))
	return &inGUE{
		random: r.choices, weights: r.weights, owners: owners, backups: backups,
		period: func() uint32 { return uint32(r.now / (loadPeriod * second)) },
		loads:  make([]load, r.config.Directors*r.config.Servers),
	}
}

func (p *inGUE) place(director int) int32 {
	slot := p.random.IntN(len(p.owners))
	owner, backup := p.owners[slot], p.backups[slot]
	period := p.period()
	loads := p.loads[director*len(p.weights):]
	chosen := owner
	if lessLoad(loads[backup].now(period), loads[owner].now(period), p.weights[backup], p.weights[owner]) {
		chosen = backup
	}
	if l := &loads[chosen]; l.opened < loadMost {
		l.opened += loadConnection
	}
	return int32(chosen)
}

// now returns the load in this period.
func (l *load) now(period uint32) uint32 {
	if passed := period - l.period; passed > 0 {
		l.opened >>= min(passed, 31)
		l.period = period
	}
	return l.opened
}

// lessLoad reports whether the backup would have less load for its weight than the owner, even with
// one more connection: the rule of has_less_load in bpf/director/pick/p2c.h.
func lessLoad(backups, owners uint32, backupWeight, ownerWeight float64) bool {
	return float64(owners)*backupWeight*ownerParts > float64(backups+loadConnection)*ownerWeight*backupParts
}
