package director

import (
	"errors"
	"reflect"
	"sync"
	"time"

	"weir.io/weir/internal/desired"
	"weir.io/weir/internal/group"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

const (
	// startPatience is how long a start waits for the group's etcd before it lets packets in and
	// tells routers, by the last state that it knew.
	startPatience = 5 * time.Second
	// goingOnPatience is the same if an earlier process's datapath forwards by that state already:
	// nothing is gained by waiting, and until this process forwards, its backends' health is not
	// checked.
	goingOnPatience = time.Second
	// groupPatience is how long a start waits for the flows that the other directors remember. Dead
	// or distant directors are not worth a longer wait: what they tell later counts, too.
	groupPatience = 3 * time.Second
)

// startup is what a director starts with.
type startup struct {
	file    model.Config  // the version that should run
	text    []byte        // its text; nil: the file is refused, and this is the version that ran last
	refused error         // why the file is refused
	ran     *model.Config // the version that ran last; nil: it is not known
	first   model.Config  // the one of these that is going to run, as far as this director knows
}

// chooseFirst opens the store that the group shares, and finds the version of the file that is going to run. That
// is not the file's where this contradicts a set and the one that ran last does not: the kernel's maps, and all
// parts, are made for what goes on. What the group has stored since this director last knew its state is not
// known yet: see runFile.
func (d *Director) chooseFirst(local *store.File) (err error) {
	b := &d.begins
	if d.group, err = openGroup(d.first.Store, d.Problems, d.log); err != nil {
		return err
	}
	if b.refused != nil || b.ran == nil || reflect.DeepEqual(b.file, *b.ran) {
		return nil
	}
	own, err := local.Read(d.ctx)
	if err != nil {
		return err
	}
	if desired.GoesWith(b.file, own, lastShared(d.group), d.group != nil) {
		return nil
	}
	ran, group := b.ran.Director, d.group
	ran.Store.Directory = d.first.Store.Directory // the one that is open
	other := !reflect.DeepEqual(ran.Store.Etcd, d.first.Store.Etcd)
	if other {
		if group, err = openGroup(ran.Store, d.Problems, d.log); err != nil {
			return err
		}
	}
	used, left := group, d.group
	if goesOn := desired.GoesWith(*b.ran, own, lastShared(group), group != nil); goesOn {
		b.first, d.first = *b.ran, ran
	} else {
		used, left = left, used
	}
	d.group = used
	if other && left != nil {
		_ = left.Close()
	}
	return nil
}

// lastShared is the group's last state that ran here. What is wrong with its copy is told when the director joins.
func lastShared(g *group.Group) store.State {
	if g == nil {
		return store.State{}
	}
	s, _, _ := g.Cached()
	return s
}

// start makes the director forward, and lets packets in. While it waits for the other directors, an
// earlier process's datapath may forward already: by what the group wants now, like the others. It
// returns the version of the file that the director goes on with.
func (d *Director) start(running *sync.WaitGroup, b startup) (used model.Config, err error) {
	patience, err := d.runFirst(b)
	if err != nil {
		return used, err
	}
	d.controller.KeepPast(true) // before Run, which forgets what ran as soon as its successor does
	running.Go(func() { d.controller.Run(d.ctx) })
	if err := d.admit(b, patience); err != nil {
		return used, err
	}
	d.controller.KeepPast(false)
	if d.refused != nil { // its text is kept when it runs
		d.Offer(b.file, b.text)
		d.keepWhatRuns()
	}
	return d.used(b), nil
}

// used is the version of the file that the director goes on with, although it may not be stored or run
// yet.
func (d *Director) used(b startup) model.Config {
	if d.refused != nil {
		return d.controller.File()
	}
	return b.file
}

// runFirst makes the first configuration run, with the sets of the group, and returns how long admit may
// wait for the flows that the group remembers.
func (d *Director) runFirst(b startup) (patience time.Duration, err error) {
	began, current := time.Now(), true
	if d.group != nil {
		etcd := startPatience
		if d.goesOn {
			etcd = goingOnPatience
		}
		if current, err = d.controller.Join(d.ctx, d.group, etcd); err != nil {
			return 0, err
		}
	}
	if err := d.runFile(b); err != nil {
		return 0, err
	}
	if err := d.members.shareFlows(d.used(b).Director); err != nil {
		return 0, err
	}
	// What is offered is kept by keepWhatRuns, which admit calls when packets are let in.
	if d.refused != nil {
		d.Offer(d.controller.File(), nil)
	} else {
		d.Offer(b.file, b.text)
	}
	if !current {
		// The directors' fingerprints are in the group's etcd, too: while that does not answer, no
		// director can send its flows.
		return startPatience - time.Since(began), nil
	}
	return groupPatience, nil
}

// admit waits for the flows that the group remembers, and lets packets in. Packets come as soon as
// routers are told, and some earlier: a router that kept its routes while a host was gone sends at
// once when the host is back. A director that had no program before lets packets in when it knows
// their backends: a wrong guess breaks a connection, and the other directors would take it over.
func (d *Director) admit(b startup, patience time.Duration) error {
	d.members.await(d.ctx, patience)
	if err := d.ctx.Err(); err != nil {
		return err
	}
	if err := d.kernel.Admit(); err != nil {
		if err := d.goOnAttached(b, err); err != nil {
			return err
		}
	}
	d.keepWhatRuns()
	d.bfd.admit()
	return nil
}

// goOnAttached goes on with what ran if the program cannot be attached to all interfaces of the
// first version of the file: that version is tried again. A director that never ran has nothing to
// go on with.
func (d *Director) goOnAttached(b startup, why error) error {
	if b.ran == nil {
		return why
	}
	d.noteTaken(why)
	for _, c := range []model.Config{*b.ran, b.file} {
		if err := d.controller.SetFile(c); err != nil && !errors.As(err, new(*desired.PendingError)) {
			return d.located(err)
		}
	}
	return nil
}

// runFile makes the first version of the file run, or goes on with what ran before: see
// desired.Begin.
func (d *Director) runFile(b startup) error {
	err := d.controller.Start(b.file, b.ran)
	pending := errors.As(err, new(*desired.PendingError))
	switch {
	case pending && reflect.DeepEqual(b.first, b.file):
		return nil // it is listed and tried again; what is pinned goes on
	case err != nil && !pending:
		return d.located(err)
	}
	if b.refused != nil {
		d.Refuse(b.refused)
	}
	used := d.controller.File()
	d.bfd.configure(&used)
	d.loads.set(&used)
	d.reports.Follow(&used)
	d.followOVN(&used)
	d.evpn.know(&used)
	if !reflect.DeepEqual(used, b.file) {
		d.refused = &b.file
	}
	d.warnOfRestart(used.Director) // by a set of the group's that was not known, another version may run than the maps are made for
	if d.refused != nil || b.refused != nil {
		d.log.Warn("an earlier version of the configuration runs: the file's is refused", "config", d.File())
	}
	return nil
}

// keepWhatRuns keeps the text of the last version of the file as soon as that runs.
func (d *Director) keepWhatRuns() {
	if file, runs := d.controller.Running(); runs && len(d.Problems.Of(model.ProblemDatapath)) == 0 {
		d.KeepOffered(file)
	}
}
