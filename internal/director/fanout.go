package director

import (
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

// fanOutProblems says why no packet is given to other CPUs that should.
func (d *Director) fanOutProblems() []model.Problem {
	if d.fanOut.none == nil {
		return nil
	}
	return []model.Problem{{Part: "fan-out", Text: "no packet is given to other CPUs: " + d.fanOut.none.Error(),
		Fix: "remove director.fan-out, or change what the text names and start the director again; meanwhile packets are handled where they come in"}}
}
