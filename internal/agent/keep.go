package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// The parts of the host that an agent owns, by the names that docs/operate/upkeep.md has.
const (
	partPins          = "pins"
	partConfiguration = upkeep.Configuration
	partInterfaces    = upkeep.Interfaces
	partSysctls       = "sysctls"
	partVIPs          = "vips"
	partPrograms      = "programs"
)

// again is how long after a failed attempt a configuration is applied again.
const again = time.Second

// parts are in the order in which they depend on each other: programs are pinned, and ARP must be
// quiet before there is a VIP that it could give away.
func (a *Agent) parts() []upkeep.Part {
	return slices.Concat([]upkeep.Part{
		a.pins.namespace.Part(),
		{Name: partPins, Look: a.locked(a.lookAtPins)},
		{Name: partConfiguration, Look: a.locked(a.lookAtConfiguration)},
		{Name: partTables, Look: a.locked(a.lookAtTables)},
		{Name: partInterfaces, Look: a.locked(a.lookAtInterfaces)},
		{Name: partSysctls, Look: a.locked(a.lookAtSysctls)},
		{Name: partVIPs, Look: a.locked(a.lookAtVIPs)},
		{Name: partPrograms, Look: a.locked(a.lookAtPrograms)},
	}, a.options.Parts)
}

// locked makes looks at a part, and its repairs, hold the lock of the agent.
func (a *Agent) locked(look func() ([]upkeep.Difference, error)) func() ([]upkeep.Difference, error) {
	return func() ([]upkeep.Difference, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.closed {
			return nil, nil
		}
		found, err := look()
		for i := range found {
			if repair := found[i].Repair; repair != nil {
				found[i].Repair = func() error {
					a.mu.Lock()
					defer a.mu.Unlock()
					if a.closed {
						return nil
					}
					return repair()
				}
			}
		}
		return found, err
	}
}

// Follow keeps the host as the configuration says until the context ends. It follows changes of the
// host, and repairs what other programs have changed of the agent's parts.
func (a *Agent) Follow(ctx context.Context) error {
	if err := a.listen(ctx); err != nil {
		return err
	}
	go a.ageFlows(ctx)
	go a.keeper.Run(ctx, a.notices.C())
	a.keeper.Wake()
	return nil
}

// listen subscribes to changes that the kernel reports, until the context ends.
func (a *Agent) listen(ctx context.Context) error {
	notices, err := upkeep.Listen(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_TC)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, notices.Close)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notices = notices
	return nil
}

// Upkeep returns the state of each part of the host, as of the last look.
func (a *Agent) Upkeep() []model.Upkeep { return a.keeper.Status() }

// by names the process that made one of these changes, if that is known.
func (a *Agent) by(matches func(upkeep.Change) bool) string {
	if a.notices == nil {
		return ""
	}
	return a.notices.By(matches)
}

// watch reports changes of files. Without it the next look finds them.
func (a *Agent) watch(paths ...string) error {
	if a.notices == nil {
		return nil
	}
	return a.notices.Files(paths...)
}

// lookAtConfiguration applies the configuration again if the host's addresses, interfaces or MTUs
// have changed, or if it could not be applied.
func (a *Agent) lookAtConfiguration() ([]upkeep.Difference, error) {
	if !a.given {
		return nil, nil
	}
	f, err := a.look()
	if err != nil {
		return nil, err
	}
	if a.problem == nil && f.equal(a.seen) {
		a.seen.waits = f.waits
		return nil, nil
	}
	before := a.problem
	if before == nil || time.Since(a.tried) >= again {
		_ = a.try(f) // a.problem keeps the error
	}
	if (before != nil || a.problem != nil) && a.options.Applied != nil {
		a.options.Applied(a.config, a.problem)
	}
	if a.problem == nil {
		return nil, nil
	}
	problem := a.problem
	return []upkeep.Difference{{What: "what the file asks for", Found: "does not run", Repair: func() error { return problem }}}, nil
}

// lookAtInterfaces says what is asked for and not there: only the host's owner can help.
func (a *Agent) lookAtInterfaces() (found []upkeep.Difference, err error) {
	for _, w := range a.seen.waits {
		found = append(found, upkeep.Difference{What: w.what, Found: w.found})
	}
	return found, nil
}

func (a *Agent) lookAtSysctls() ([]upkeep.Difference, error) {
	if !a.planned {
		return nil, nil
	}
	needed := neededSysctls(entrances(a.uplinks), a.plan.quiet())
	paths := make([]string, len(needed))
	for i, s := range needed {
		paths[i] = sysctlPath(s.conf, s.key)
	}
	if err := a.watch(paths...); err != nil {
		return nil, err
	}
	return sysctlDifferences(needed)
}

// lookAtVIPs compares the addresses of lo. A VIP that another program put there remains that
// program's.
func (a *Agent) lookAtVIPs() (found []upkeep.Difference, err error) {
	if !a.planned {
		return nil, nil
	}
	lo, err := netlink.LinkByIndex(loopbackIndex)
	if err != nil {
		return nil, fmt.Errorf("find lo: %w", err)
	}
	if lo.Attrs().Flags&net.FlagUp == 0 {
		found = append(found, upkeep.Difference{What: lo.Attrs().Name, Found: "is down",
			By:     a.by(func(c upkeep.Change) bool { return c.Type == unix.RTM_NEWLINK && c.Index == loopbackIndex }),
			Repair: func() error { _, err := loopback(); return err }})
	}
	has, err := listLoopback()
	if err != nil {
		return nil, err
	}
	there, wanted := make(map[netip.Addr]bool, len(has)), make(map[netip.Addr]bool, len(a.plan.vips))
	for _, l := range has {
		there[l.address] = true
	}
	for _, vip := range a.plan.vips {
		if wanted[vip] = true; !there[vip] {
			found = append(found, upkeep.Difference{What: vip.String() + " on lo", Found: "is gone", By: a.by(deleted(vip)),
				Repair: func() error { return a.holdAgain(vip) }})
		}
	}
	if a.problem != nil {
		return found, nil // old VIPs go once the new ones are in place
	}
	for _, l := range has {
		if l.ours && !wanted[l.address] {
			found = append(found, upkeep.Difference{What: l.address.String() + " on lo", Found: "is there, and no service has it",
				Repair: func() error { return releaseVIPs(a.plan.vips) }})
		}
	}
	return found, nil
}

// holdAgain puts a VIP back, unless it is no longer one.
func (a *Agent) holdAgain(vip netip.Addr) error {
	if !slices.Contains(a.plan.vips, vip) {
		return nil
	}
	return holdVIPs([]netip.Addr{vip})
}

func deleted(address netip.Addr) func(upkeep.Change) bool {
	return func(c upkeep.Change) bool { return c.Type == unix.RTM_DELADDR && c.Address == address }
}

// lookAtPrograms compares what is attached to each uplink.
func (a *Agent) lookAtPrograms() (found []upkeep.Difference, err error) {
	how := a.attacher()
	for i, at := range a.attachments {
		for _, w := range how.wanted(at) {
			wrong, err := how.wrong(at.uplink, w)
			if err != nil {
				return nil, err
			}
			if isGone(at.uplink.index) {
				continue // an interface that is gone is followed as such
			}
			if wrong == "" {
				behind, err := a.behind(at, w)
				if err != nil {
					return nil, err
				}
				if behind != nil {
					found = append(found, *behind)
				}
				continue
			}
			found = append(found, upkeep.Difference{What: w.hook + " of " + at.name, Found: wrong, By: a.by(detached(at.index)),
				Repair: func() error { return a.attachAgain(i, at.uplink) }})
		}
	}
	return found, nil
}

func detached(index int) func(upkeep.Change) bool {
	return func(c upkeep.Change) bool {
		return c.Index == index && (c.Type == unix.RTM_DELQDISC || c.Type == unix.RTM_DELTFILTER || c.Type == unix.RTM_NEWTFILTER)
	}
}

// attachAgain attaches again to an uplink that has other programs, and pins its own. It does not
// pin in a directory that another agent has taken meanwhile, which would take the programs for its
// own.
func (a *Agent) attachAgain(i int, u uplink) error {
	if !a.pins.inPlace() {
		if err := a.pins.again(); err != nil {
			return err
		}
	}
	at, err := a.attacher().attach(u)
	if err == nil && i < len(a.attachments) && a.attachments[i].index == u.index {
		a.attachments[i] = at
	}
	return err
}
