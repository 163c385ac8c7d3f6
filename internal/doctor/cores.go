package doctor

import (
	"fmt"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/tune"
)

// cores looks at how well the host's CPUs share the packets of the director's interfaces: at what weir tune
// sets, and what it only tells of.
func (x *examination) cores() {
	if x.running {
		return // nothing of it fails
	}
	host := x.host
	if host == nil {
		host = tune.This()
	}
	parts, _ := host.Survey(x.config.Director.Interfaces, tune.Options{Reserved: Reserved(&x.config.Director), FanOut: FanOut(host, &x.config.Director)}) // interfaces that are missing are told of by exists
	for i := range parts {
		p := &parts[i]
		if !p.Amiss {
			x.ok(p.Check(), "%s", p.Text)
			continue
		}
		fix := p.Fix
		switch amiss := tune.AmissIn(parts[i : i+1]); len(amiss) {
		case 0:
		case 1:
			fix = "weir tune --apply, or " + amiss[0].Command(amiss[0].Want)
		default:
			fix = fmt.Sprintf("weir tune --apply, or %s, and %d more: weir tune --dry-run lists them", amiss[0].Command(amiss[0].Want), len(amiss)-1)
		}
		x.warn(p.Check(), fix, "%s", p.Text)
	}
}

// FanOut are the CPUs that a director gives packets to.
func FanOut(host *tune.Host, d *model.Director) []uint32 {
	cpus, err := host.FanOut(d.FanOut, d.Interfaces)
	if err != nil {
		return nil // the director tells why there are none
	}
	return cpus
}

// Reserved are the queues that a director keeps for flows with rules, by interface.
func Reserved(d *model.Director) map[string][]uint32 {
	reserved := map[string][]uint32{}
	for _, name := range d.Steering.On(d.Interfaces) {
		if now, err := device.NamesNow([]string{name}); err == nil { // one that is missing has none
			reserved[now[0]] = d.Steering.Queues.List()
		}
	}
	return reserved
}
