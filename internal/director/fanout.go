package director

import (
	"slices"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/tune"
)

// chooseFanOut chooses the CPUs that get packets. A director forwards without them, too, and says why.
func (d *Director) chooseFanOut() {
	f := d.first.FanOut
	d.fanOut.cpus, d.fanOut.none = tune.This().FanOut(f, d.first.Interfaces)
	switch {
	case d.fanOut.none != nil:
		d.log.Error("no packet is given to other CPUs", "error", d.fanOut.none)
	case f.Given() && len(d.fanOut.cpus) == 0:
		d.log.Info("no packet is given to other CPUs: each has a receive queue", "fan-out", f.String())
	case f.Given():
		d.log.Info("packets of expensive services are given to other CPUs", "fan-out", f.String(), "cpus", d.fanOut.cpus)
	}
}

// fanOutProblems says why no packet is given to other CPUs that should, or why some that are may be lost: by an
// interface that the configuration has named since the start.
func (d *Director) fanOutProblems() []model.Problem {
	if d.fanOut.none != nil {
		return []model.Problem{{Part: "fan-out", Text: "no packet is given to other CPUs: " + d.fanOut.none.Error(),
			Fix: "remove director.fan-out, or change what the text names and start the director again; meanwhile packets are handled where they come in"}}
	}
	now := d.Config().Director.Interfaces
	if len(d.fanOut.cpus) == 0 || slices.Equal(now, d.first.Interfaces) {
		return nil
	}
	if _, err := tune.This().FanOut(d.first.FanOut, now); err != nil {
		return []model.Problem{{Part: "fan-out", Text: "packets that are given to other CPUs may be lost: " + err.Error(),
			Fix: "start the director again: it gives none away then; or take the interface out"}}
	}
	return nil
}
