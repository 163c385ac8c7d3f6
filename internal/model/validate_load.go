package model

import (
	"fmt"
	"net/netip"
)

// loads checks how loads are reported.
func (v *validation) loads() {
	l := &v.config.Loads
	if l.IsZero() {
		return
	}
	if !l.Given() {
		v.errs.add("loads.key-file", "is required: who has its key is believed")
	}
	v.fromRoot("loads.key-file", l.KeyFile)
	v.duration("loads.interval", l.Interval, minLoadInterval, maxLoadInterval)
	if n := len(v.config.LoadDirectors()); n > maxLoadDirectors {
		v.errs.add("loads.to", "%d directors to report to are more than %d", n, maxLoadDirectors)
	}
	seen := make(map[netip.Addr]int, len(l.To))
	for i, a := range l.To {
		at := fmt.Sprintf("loads.to[%d]", i)
		if problem := addressProblem(a); problem != "" {
			v.errs.add(at, "%s %s", a, problem)
			continue
		}
		if first, dup := seen[a]; dup {
			v.errs.addWithOther(at, fmt.Sprintf("loads.to[%d]", first), "%s is named twice", a)
			continue
		}
		seen[a] = i
	}
	if len(v.config.LoadDirectors()) == 0 {
		v.errs.addWithOther("loads.to", "directors", "is required: directors has no single address that reports could be sent to")
	}
}
