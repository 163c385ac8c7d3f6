package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"weir.io/weir/internal/desired"
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

// start makes the director forward, and lets packets in. While it waits for the other directors, an
// earlier process's datapath may forward already: by what the group wants now, like the others.
func (d *director) start(ctx context.Context, running *sync.WaitGroup, first model.Config, text []byte) error {
	patience, err := d.begin(ctx, first, text)
	if err != nil {
		return err
	}
	d.keeper.KeepPast(true)
	running.Go(func() { d.keeper.Run(ctx) })
	if err := d.admit(ctx, first, text, patience); err != nil {
		return err
	}
	d.keeper.KeepPast(false)
	return nil
}

// begin makes the first configuration run, with the sets of the group, and returns how long admit may
// wait for the flows that the group remembers.
func (d *director) begin(ctx context.Context, first model.Config, text []byte) (patience time.Duration, err error) {
	began, current := time.Now(), true
	if d.group != nil {
		etcd := startPatience
		if d.goesOn {
			etcd = goingOnPatience
		}
		if current, err = d.keeper.Join(ctx, d.group, etcd); err != nil {
			return 0, err
		}
	}
	if err := d.beginFile(first, text); err != nil {
		return 0, err
	}
	if err := d.shares.set(first.Director); err != nil {
		return 0, err
	}
	d.offer(first, text)
	if !current {
		// The directors' fingerprints are in the group's etcd, too: while that does not answer, no
		// director can tell anything.
		return startPatience - time.Since(began), nil
	}
	return groupPatience, nil
}

// admit waits for the flows that the group remembers, and lets packets in. Packets come as soon as
// routers are told, and some earlier: a router that kept its routes while a host was gone sends at
// once when the host is back. A director that had no program before lets packets in when it knows
// their backends: a wrong guess breaks a connection, and the director would tell it to the others.
func (d *director) admit(ctx context.Context, first model.Config, text []byte, patience time.Duration) error {
	d.shares.await(ctx, patience)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.kernel.Admit(); err != nil {
		if err := d.goOnAttached(first, text, err); err != nil {
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
func (d *director) goOnAttached(first model.Config, text []byte, why error) error {
	ran, _ := lastRan(d.info.File, store.RunningDirector, text)
	if ran == nil {
		return why
	}
	d.noteTaken(why)
	for _, c := range []model.Config{*ran, first} {
		if err := d.keeper.SetFile(c); err != nil && !errors.As(err, new(*desired.PendingError)) {
			return d.located(err)
		}
	}
	return nil
}

// beginFile makes the first version of the file run, or goes on with what ran before: see
// desired.Begin. The text is that of a file that is not refused yet.
func (d *director) beginFile(first model.Config, text []byte) error {
	ran, _ := lastRan(d.info.File, store.RunningDirector, text) // a problem with it is listed already
	err := d.keeper.Begin(first, ran)
	switch {
	case errors.As(err, new(*desired.PendingError)):
		return nil // it is listed and tried again; what is pinned goes on
	case err != nil:
		return d.located(err)
	}
	if d.refused != nil {
		d.problems.Report(model.ProblemFile, d.info.File, d.refused)
	}
	used := d.keeper.File()
	d.bfd.want(&used)
	d.loads.set(&used)
	return nil
}

// keepWhatRuns keeps the text of the last version of the file as soon as that runs.
func (d *director) keepWhatRuns() {
	if file, runs := d.keeper.Running(); runs && len(d.problems.Of(model.ProblemDatapath)) == 0 {
		d.keepOffered(file)
	}
}
