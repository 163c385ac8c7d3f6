package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/contents"
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
	// partTables is what the programs look things up in: services, their peers and pods, and what is
	// redirected, as planned.
	partTables = "tables"
)

// retryAfter is how long after a failed attempt a configuration is applied again.
const retryAfter = time.Second

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
	}, a.deps.Parts)
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
func (a *Agent) Follow(ctx context.Context) {
	go a.ageFlows(ctx)
	go a.reconciler.Run(ctx, a.notices)
	a.reconciler.Wake()
}

// NotNoticed says why the kernel gives no notice of changes of the host, which are then found later, or
// returns nil.
func (a *Agent) NotNoticed() error { return a.notices.Problem() }

// Alive waits until the agent is done with looking at its host, and ready to look again.
func (a *Agent) Alive(ctx context.Context) error { return a.reconciler.Alive(ctx) }

// Upkeep returns the state of each part of the host, as of the last look.
func (a *Agent) Upkeep() []model.Upkeep { return a.reconciler.Status() }

// lookAtConfiguration applies the configuration again if the host's addresses, interfaces or MTUs
// have changed, or if it could not be applied.
func (a *Agent) lookAtConfiguration() ([]upkeep.Difference, error) {
	if !a.given {
		return nil, nil
	}
	h, err := a.look()
	if err != nil {
		return nil, err
	}
	if a.problem == nil && h.equal(a.seen) {
		a.seen.waits = h.waits
		return nil, nil
	}
	before := a.problem
	if before == nil || time.Since(a.tried) >= retryAfter {
		_ = a.try(h) // a.problem keeps the error
	}
	if (before != nil || a.problem != nil) && a.deps.OnApplied != nil {
		a.deps.OnApplied(a.config, a.problem)
	}
	if a.problem == nil {
		return nil, nil
	}
	problem := a.problem
	return []upkeep.Difference{{What: "what the file asks for", Found: "does not run", Repair: func() error { return problem }}}, nil
}

// repairable returns, by part, what is not as planned. To apply a configuration repairs it. A look that
// fails here is made again after that, and then its error is told.
func (a *Agent) repairable() map[string][]upkeep.Difference {
	a.comparison = contents.Comparison{} // not only when it is time to
	found := map[string][]upkeep.Difference{}
	for part, look := range map[string]func() ([]upkeep.Difference, error){
		partPins: a.lookAtPins, partTables: a.lookAtTables, partSysctls: a.lookAtSysctls, partVIPs: a.lookAtVIPs, partPrograms: a.lookAtPrograms,
	} {
		differences, err := look()
		if err == nil {
			found[part] = slices.DeleteFunc(differences, func(d upkeep.Difference) bool { return d.Repair == nil })
		}
	}
	return found
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
	if err := a.notices.Files(paths...); err != nil {
		return nil, err
	}
	found, err := sysctlDifferences(needed)
	for i := range found {
		name := found[i].What
		found[i].Wanted = func() bool {
			return slices.ContainsFunc(neededSysctls(entrances(a.uplinks), a.plan.quiet()), func(s sysctl) bool { return s.name() == name })
		}
	}
	return found, err
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
			By:     a.notices.By(func(c upkeep.Change) bool { return c.Type == unix.RTM_NEWLINK && c.Index == loopbackIndex }),
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
			found = append(found, upkeep.Difference{What: vip.String() + " on lo", Found: "is gone", By: a.notices.By(deleted(vip)),
				Repair: func() error { return a.holdAgain(vip) }, Wanted: func() bool { return slices.Contains(a.plan.vips, vip) }})
		}
	}
	if a.problem != nil {
		return found, nil // old VIPs go once the new ones are in place
	}
	for _, l := range has {
		if l.ours && !wanted[l.address] {
			found = append(found, upkeep.Difference{What: l.address.String() + " on lo", Found: "is there, and no service has it",
				Repair: func() error { return releaseVIPs(a.plan.vips) }, Wanted: func() bool { return !slices.Contains(a.plan.vips, l.address) }})
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
			found = append(found, upkeep.Difference{What: w.hook + " of " + at.name, Found: wrong, By: a.notices.By(detached(at.index)),
				Repair: func() error { return a.attachAgain(i, at.uplink) }, Wanted: func() bool { return a.attaches(at.index, w.hook) }})
		}
	}
	return found, nil
}

// attaches reports whether something is attached to a hook of an interface, as planned.
func (a *Agent) attaches(index int, hook string) bool {
	how := a.attacher()
	return slices.ContainsFunc(a.attachments, func(at attachment) bool {
		return at.index == index && slices.ContainsFunc(how.wanted(at), func(w wanted) bool { return w.hook == hook })
	})
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
	if err := a.pins.acquire(); err != nil {
		return err
	}
	at, err := a.attacher().attach(u)
	if err == nil && i < len(a.attachments) && a.attachments[i].index == u.index {
		a.attachments[i] = at
	}
	return err
}

// fewPins is up to how many lost pins are reported one by one.
const fewPins = 3

// lookAtPins compares what is pinned. Without their pins, maps and programs live on while the
// process has them: nothing is lost if they are pinned again before it ends.
func (a *Agent) lookAtPins() ([]upkeep.Difference, error) {
	if err := a.notices.Files(a.pins.root, a.pins.links(), a.pins.state(), a.pins.maps(a.version)); err != nil {
		return nil, err
	}
	if !a.pins.inPlace() {
		return []upkeep.Difference{{What: a.pins.root, Found: "was removed", Repair: a.pinAllAgain}}, nil
	}
	var found []upkeep.Difference
	pinned := a.pinned()
	for _, path := range slices.Sorted(maps.Keys(pinned)) {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			found = append(found, upkeep.Difference{What: path, Found: "was removed", Repair: func() error { return pinAgain(pinned[path], path) },
				Wanted: func() bool { return a.pinned()[path] != nil }})
		}
	}
	if len(found) > fewPins {
		return []upkeep.Difference{{What: a.pins.root, Found: fmt.Sprintf("has lost the pins of %d maps", len(found)), Repair: a.pinAllAgain}}, nil
	}
	return found, nil
}

// lookAtTables compares what the maps have with what they must have.
func (a *Agent) lookAtTables() ([]upkeep.Difference, error) {
	if !a.given {
		return nil, nil // it owns nothing yet
	}
	if !a.planned || a.problem != nil {
		return nil, fmt.Errorf("%w: what the file asks for does not run as a whole", upkeep.ErrUnknown)
	}
	return a.comparison.Look(a.compared, func(name string) error { return contents.Mend(a.compared(), name) })
}

// compared are the maps, in the order in which they are written.
func (a *Agent) compared() []contents.Map {
	list := a.tables.maps(&a.objects.bpfMaps, a.former)
	if a.redirector != nil {
		list = append(list, a.redirector.compared()...)
	}
	return list
}
