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

// fanOut checks that packets can be given to other CPUs as the configuration asks.
func (x *examination) fanOut() {
	f := x.config.Director.FanOut
	if !f.Given() || x.running { // the director says so itself
		return
	}
	host := x.host
	if host == nil {
		host = tune.This()
	}
	switch cpus, err := host.FanOut(f, x.config.Director.Interfaces); {
	case err != nil:
		x.warn("fan-out", "remove director.fan-out, or change what the text names", "no packet will be given to other CPUs: %v", err)
	case len(cpus) == 0:
		x.ok("fan-out", "each CPU has a receive queue: no packet is given to others")
	default:
		x.ok("fan-out", "CPUs %v get packets", cpus)
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
